"""Arrays on the fake device (tests/worker/device/fake_device.h), whose memory the CPU cannot touch, by DLPack."""

import ctypes
import os

import numpy as np
import warren

fake = ctypes.CDLL(os.environ["WARREN_DEVICE_LIBRARY"])
POINTER = ctypes.c_void_p


class Table(ctypes.Structure):
    """The beginning of warren_device_table."""

    _fields_ = [("version", ctypes.c_uint32), ("bytes", ctypes.c_uint32),
                *[(name, POINTER) for name in ("name", "error_text", "init", "locate", "allocate_pinned", "free_pinned")],
                ("allocate", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_size_t, POINTER))]


class Controls(ctypes.Structure):
    _fields_ = [*[(name, POINTER) for name in ("arm", "release", "calls", "shared", "say_nccl", "unload", "drop")],
                ("write", ctypes.CFUNCTYPE(None, POINTER, POINTER, ctypes.c_size_t)),
                ("read", ctypes.CFUNCTYPE(None, POINTER, POINTER, ctypes.c_size_t))]


fake.warren_device_table_7.restype = ctypes.POINTER(Table)
fake.fake_device_controls.restype = ctypes.POINTER(Controls)
table, controls = fake.warren_device_table_7()[0], fake.fake_device_controls()[0]


class Tensor(ctypes.Structure):
    """DLTensor, and what DLManagedTensor has behind it."""

    _fields_ = [("data", POINTER), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", POINTER), ("strides", POINTER), ("byte_offset", ctypes.c_uint64),
                ("context", POINTER), ("deleter", POINTER)]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [POINTER, ctypes.c_char_p, POINTER]


class GpuArray:
    """An array of one axis on the device, of float32. device_type: as DLPack numbers them; 2: CUDA."""

    def __init__(self, values, device_type=2):
        values = np.asarray(values, "float32")
        self.memory = POINTER()
        assert table.allocate(0, values.nbytes, ctypes.byref(self.memory)) == 0
        controls.write(self.memory, values.ctypes.data, values.nbytes)
        self.values = values
        self.lengths = (ctypes.c_int64 * 1)(len(values))
        self.tensor = Tensor(data=self.memory.value, device_type=device_type, ndim=1, code=2, bits=32, lanes=1,
                             shape=ctypes.addressof(self.lengths))

    def __dlpack__(self, *, stream=None, **options):
        assert stream is None, stream  # the default stream
        if "max_version" in options:
            raise TypeError("an older DLPack")
        return new_capsule(ctypes.addressof(self.tensor), b"dltensor", None)

    def __dlpack_device__(self):
        return (self.tensor.device_type, 0)

    def read(self):
        out = np.empty_like(self.values)
        controls.read(out.ctypes.data, self.memory, out.nbytes)
        return out


with warren.init() as comm:
    mine = np.arange(1000, dtype="float32") + comm.rank
    total = sum(np.arange(1000, dtype="float32") + r for r in range(comm.size))
    x, out = GpuArray(mine), GpuArray(np.zeros(1000))
    assert comm.allreduce(x, out=out) is out
    assert (out.read() == total).all() and (x.read() == mine).all()
    assert comm.allreduce(x, out=x) is x
    assert (x.read() == total).all()
    in_numpy = np.empty_like(mine)
    comm.allreduce(GpuArray(mine), out=in_numpy)
    assert (in_numpy == total).all()
    comm.allreduce(mine, out=out)
    assert (out.read() == total).all()
    handle = comm.allreduce_async(out, "max", out=out)
    assert (handle.wait().read() == total).all()
    comm.use_stream(0)
    assert (comm.broadcast(GpuArray(mine), root=1).read() == np.arange(1000) + 1).all()
    everyone = GpuArray(np.zeros(1000 * comm.size))
    comm.allgather(GpuArray(mine), out=everyone)
    assert (everyone.read().reshape(comm.size, 1000)[comm.rank] == mine).all()
    peer = 1 - comm.rank
    sending = comm.send_async(GpuArray(mine), peer)
    assert (comm.recv(GpuArray(np.zeros(1000)), peer).read() == np.arange(1000) + peer).all()
    sending.wait()
    for wrong, words in ((lambda: comm.allreduce(x), "out is None, and x is on a GPU"),
                         (lambda: comm.allreduce(GpuArray(mine, device_type=10), out=x), "neither of the CPU nor of a GPU")):
        try:
            wrong()
        except TypeError as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)
