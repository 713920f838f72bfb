"""States of checkpoints as bytes.

A state is an array, a number, a str, bytes, None, a numpy.random.Generator, or a dict, list or tuple of states; the
keys of dicts are str. Its bytes are a safetensors file, so other programs can read the arrays of a checkpoint:

    8 bytes      N, the length of the header, little-endian
    N bytes      the header: JSON, padded with spaces to a multiple of 8
    the rest     the arrays' elements, C-contiguous, little-endian, one array after the other

The header maps each array's name to {"dtype", "shape", "data_offsets"}. The name is the path to the array: the keys and
indices that lead there, joined by "/"; in a key "~" is written "~0" and "/" is written "~1", as in a JSON pointer. A
state that is an array by itself has the name "". Arrays lie in the order of their element size, largest first, and then
of their names, so that all are aligned. header["__metadata__"]["warren"] is JSON of what arrays cannot say:

    null, true, 1, 0.5, "text"     as in JSON; also NaN, Infinity and -Infinity
    {"dict": {key: state, …}}, {"list": [state, …]}, {"tuple": [state, …]}
    {"array": name}                the array of that name
    {"fortran": name}              the same for an array that lies in memory in Fortran's order, column by column
    {"scalar": name}               a NumPy scalar, stored as an array of shape ()
    {"bytes": name}                bytes, stored as an array of uint8
    {"pickle": name}               a pickled object, stored as bytes are
    {"random": state}              the state of a numpy.random.Generator's bit generator

Equal states give equal bytes. The order of a dict's keys is part of the state, and so is an array's order in memory: a
program that goes over a dict makes its calls in that order, and sums of floats follow from the order in memory.
"""

from __future__ import annotations

import json
import pickle as pickles
import struct
import typing

import numpy

DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
NAMES = {short: name for name, short in DTYPES.items()}
BIT_GENERATORS = {"MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"}
MAX_HEADER_BYTES = 100_000_000  # as safetensors


def _child(path: str, part: str) -> str:
    part = part.replace("~", "~0").replace("/", "~1")
    return f"{path}/{part}" if path else part


def _where(path: str) -> str:
    return f"state[{path!r}]" if path else "the state"


def _is_fortran(array: numpy.ndarray) -> bool:
    """Whether the array lies in memory in Fortran's order, and not in C's as well."""
    return array.flags.fnc


class _Encoder:
    def __init__(self, pickle: bool):
        self.pickle = pickle
        self.arrays: dict[str, numpy.ndarray] = {}

    def _store(self, path: str, array: numpy.ndarray) -> str:
        if array.dtype.name not in DTYPES or not array.dtype.isnative:
            raise TypeError(f"{_where(path)} is an array of {array.dtype}; there are {', '.join(DTYPES)}")
        if path in self.arrays or path == "__metadata__":
            raise ValueError(f"{_where(path)} and something else have the name {path!r}: rename a key")
        shape = array.shape
        self.arrays[path] = numpy.ascontiguousarray(array).reshape(shape)
        return path

    def encode(self, value: typing.Any, path: str = "") -> typing.Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise TypeError(f"{_where(path)} is a dict with the key {key!r}; keys are str")
            return {"dict": {key: self.encode(value[key], _child(path, key)) for key in value}}
        if type(value) in (list, tuple):
            return {type(value).__name__: [self.encode(item, _child(path, str(i))) for i, item in enumerate(value)]}
        if isinstance(value, (bytes, bytearray, memoryview)):
            return {"bytes": self._store(path, numpy.frombuffer(value, numpy.uint8))}
        if isinstance(value, numpy.generic):
            return {"scalar": self._store(path, numpy.asarray(value))}
        if isinstance(value, numpy.random.Generator):
            name = type(value.bit_generator).__name__
            if name in BIT_GENERATORS:
                return {"random": self.encode(value.bit_generator.state, _child(path, "random"))}
        elif hasattr(value, "__array__") and not isinstance(value, numpy.ma.MaskedArray):  # whose mask would be lost
            array = numpy.asarray(value)
            return {"fortran" if _is_fortran(array) else "array": self._store(path, array)}
        if self.pickle:
            return {"pickle": self._store(path, numpy.frombuffer(pickles.dumps(value, protocol=5), numpy.uint8))}
        raise TypeError(
            f"{_where(path)} is {type(value).__name__}; a state is made of arrays, numbers, str, bytes, dicts, lists, "
            "tuples and numpy.random.Generator. checkpoint(pickle=True) stores other objects as well"
        )


def encode(state: typing.Any, pickle: bool = False) -> list[memoryview]:
    """The bytes of a state, as buffers to be put one after the other. Arrays that are contiguous are not copied."""
    encoder = _Encoder(pickle)
    tree = json.dumps(encoder.encode(state), separators=(",", ":"))
    order = sorted(encoder.arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header: dict[str, typing.Any] = {"__metadata__": {"warren": tree}}
    end = 0
    for name, array in order:
        begin, end = end, end + array.nbytes
        dtype = DTYPES[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"the state has a header of {len(text)} bytes; {MAX_HEADER_BYTES} are the most")
    data = [array.reshape(-1).view(numpy.uint8).data for _, array in order if array.nbytes > 0]
    return [memoryview(struct.pack("<Q", len(text)) + text), *data]


class _Decoder:
    def __init__(self, header: dict[str, typing.Any], data: memoryview, pickle: bool):
        self.header, self.data, self.pickle = header, data, pickle

    def _array(self, name: str) -> numpy.ndarray:
        entry = self.header[name]
        begin, end = entry["data_offsets"]
        dtype = numpy.dtype(NAMES[entry["dtype"]])
        return numpy.frombuffer(self.data[begin:end], dtype).reshape(entry["shape"]).copy()

    def decode(self, tree: typing.Any) -> typing.Any:
        if not isinstance(tree, dict):
            return tree
        ((kind, value),) = tree.items()
        if kind == "dict":
            return {key: self.decode(item) for key, item in value.items()}
        if kind in ("list", "tuple"):
            items = [self.decode(item) for item in value]
            return tuple(items) if kind == "tuple" else items
        if kind == "array":
            return self._array(value)
        if kind == "fortran":
            return numpy.asfortranarray(self._array(value))
        if kind == "scalar":
            return self._array(value)[()]
        if kind == "bytes":
            return self._array(value).tobytes()
        if kind == "random":
            state = self.decode(value)
            if state["bit_generator"] not in BIT_GENERATORS:
                raise ValueError(f"unknown bit generator {state['bit_generator']!r}")
            bits = getattr(numpy.random, state["bit_generator"])()
            bits.state = state
            return numpy.random.Generator(bits)
        if kind == "pickle":
            if not self.pickle:
                raise TypeError(f"{_where(value)} is a pickled object: load_checkpoint(pickle=True) unpickles it")
            return pickles.loads(self._array(value).tobytes())
        raise ValueError(f"unknown kind {kind!r}")


def decode(data: bytes | bytearray | memoryview, pickle: bool = False) -> typing.Any:
    """The state of these bytes. Its arrays are new, and may be written to. ValueError: the bytes are no state."""
    view = memoryview(data).cast("B")
    try:
        (length,) = struct.unpack_from("<Q", view)
        if not 0 < length <= min(len(view) - 8, MAX_HEADER_BYTES):
            raise ValueError(f"a header of {length} bytes in {len(view)}")
        header = json.loads(bytes(view[8 : 8 + length]))
        tree = json.loads(header["__metadata__"]["warren"])
        return _Decoder(header, view[8 + length :], pickle).decode(tree)
    except TypeError as error:
        if "is a pickled object" in str(error):
            raise
        raise ValueError(f"these {len(view)} bytes are no state of warren's: {error}") from error
    except (ValueError, KeyError, AttributeError, struct.error) as error:
        raise ValueError(f"these {len(view)} bytes are no state of warren's: {error!r}") from error


def outline(state: typing.Any) -> typing.Any:
    """What copy_into goes by of a state: its dicts, lists and tuples, and arrays that have no memory."""
    if isinstance(state, dict):
        return {key: outline(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        items = [outline(item) for item in state]
        return items if isinstance(state, list) else tuple(items)
    if isinstance(state, numpy.ndarray):
        return numpy.broadcast_to(numpy.zeros((), state.dtype), state.shape)
    return None


def copy_into(target: typing.Any, source: typing.Any, path: str = "") -> typing.Any:
    """`source`, put into `target` where that can be changed in place, so that names of its parts stay good: arrays keep
    their memory, dicts, lists and random generators are the same objects. ValueError: a dict of the source has lost keys,
    or an array has another shape or type."""
    if isinstance(target, dict):
        if not isinstance(source, dict) or not target.keys() <= source.keys():
            found = list(source) if isinstance(source, dict) else type(source).__name__
            raise ValueError(f"{_where(path)} has {list(target)} before the loop, and in the checkpoint {found}")
        merged = {
            key: copy_into(target[key], item, _child(path, key)) if key in target else item
            for key, item in source.items()
        }
        target.clear()  # the order of the keys is the checkpoint's
        for key, value in merged.items():
            target[key] = value
        return target
    if isinstance(target, (list, tuple)) and type(target) is type(source):
        items = [
            copy_into(target[i], item, _child(path, str(i))) if i < len(target) else item
            for i, item in enumerate(source)
        ]
        if isinstance(target, tuple):
            return tuple(items)
        target[:] = items
        return target
    if isinstance(target, bytearray) and isinstance(source, bytes):
        target[:] = source
        return target
    if isinstance(target, numpy.random.Generator) and isinstance(source, numpy.random.Generator):
        if type(target.bit_generator) is type(source.bit_generator):
            target.bit_generator.state = source.bit_generator.state
            return target
    if isinstance(target, numpy.ndarray) and isinstance(source, numpy.ndarray):
        if target.shape != source.shape or target.dtype != source.dtype:
            raise ValueError(
                f"{_where(path)} is {target.dtype}{list(target.shape)} before the loop, and in the checkpoint "
                f"{source.dtype}{list(source.shape)}"
            )
        if target.flags.writeable and _is_fortran(target) == _is_fortran(source):
            target[...] = source
            return target
    return source
