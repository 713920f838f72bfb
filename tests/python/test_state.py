"""States as bytes: the format, its round trip, and what is refused."""

import collections
import json
import struct

import ml_dtypes
import numpy as np
import pytest
from warren import _state


def to_bytes(state, **options):
    return b"".join(_state.encode(state, **options))


def same(a, b):
    assert type(a) is type(b), (a, b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    elif isinstance(a, (np.ndarray, np.generic)):
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        assert a.flags.fnc == b.flags.fnc
    elif isinstance(a, np.random.Generator):
        assert repr(a.bit_generator.state) == repr(b.bit_generator.state)
    else:
        assert a == b or (a != a and b != b)


STATES = [
    None,
    b"",
    b"bytes\x00\xff",
    0,
    -(2**70),
    0.1,
    float("inf"),
    float("nan"),
    "täxt",
    True,
    {},
    [],
    (),
    {"z": 1, "a": {"y": 2, "b": 3}},
    {"": 1, "a/b": np.arange(3), "a~b": np.arange(4), "a": {"b": np.arange(5)}},
    [1, [2.5, (np.zeros((2, 0, 3)), {"x": np.float32(1.5)})], b"z"],
    np.array(3.5),
    np.arange(12, dtype="int16").reshape(3, 4).T,
    np.array([True, False]),
    np.random.default_rng(1),
    {"random": np.random.Generator(np.random.MT19937(2)), "philox": np.random.Generator(np.random.Philox(3))},
    np.ones(3, ml_dtypes.bfloat16),
    *[np.arange(7).astype(name) for name in _state.DTYPES if name not in ("bool", "bfloat16")],
]


@pytest.mark.parametrize("state", STATES, ids=lambda state: repr(state)[:30])
def test_states_come_back_as_they_were(state):
    data = to_bytes(state)
    back = _state.decode(data)
    same(back, state)
    assert to_bytes(back) == data


def test_the_bytes_are_a_safetensors_file():
    weights = np.arange(6, dtype="float32").reshape(2, 3)
    state = {"layers": [{"w": weights}], "step": np.int64(9), "half": np.ones(1, "float16")}
    data = to_bytes(state)
    (length,) = struct.unpack("<Q", data[:8])
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    tree = json.loads(header.pop("__metadata__")["warren"])
    assert tree["dict"]["layers"] == {"list": [{"dict": {"w": {"array": "layers/0/w"}}}]}
    assert header == {
        "layers/0/w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [8, 32]},
        "step": {"dtype": "I64", "shape": [], "data_offsets": [0, 8]},
        "half": {"dtype": "F16", "shape": [1], "data_offsets": [32, 34]},
    }
    assert len(data) == 8 + length + 34  # without holes
    assert data[8 + length + 8 :][:24] == weights.tobytes()


def test_the_order_of_keys_and_the_order_in_memory_are_parts_of_the_state():
    a, b = {"x": 1, "y": np.ones(2)}, {"y": np.ones(2), "x": 1}
    assert to_bytes(a) != to_bytes(b)
    array = np.arange(6).reshape(2, 3)
    assert to_bytes(array) != to_bytes(np.asfortranarray(array))


def test_arrays_are_not_copied():
    array = np.ones(1000)
    assert any(np.shares_memory(np.frombuffer(part, np.uint8), array) for part in _state.encode({"a": array}))


@pytest.mark.parametrize(
    "state, words",
    [
        ({1: 2}, "the key 1"),
        ({"a": [0, object()]}, "state['a/1'] is object"),
        ({"a": np.array(["x"])}, "state['a'] is an array of <U1"),
        ({"a": np.ma.masked_array([1, 2], [0, 1])}, "state['a'] is MaskedArray"),
        (np.array([1], dtype=">i4"), "the state is an array of >i4"),
        (1j, "complex"),
    ],
)
def test_other_states_are_refused_by_their_path(state, words):
    with pytest.raises(TypeError) as error:
        _state.encode(state)
    assert words in str(error.value)


def test_two_arrays_of_one_name_are_refused():
    with pytest.raises(ValueError, match="rename a key"):
        _state.encode({"": {"a": np.ones(1)}, "a": np.ones(1)})
    with pytest.raises(ValueError, match="rename a key"):
        _state.encode({"__metadata__": np.ones(1)})


def test_objects_are_pickled_only_when_asked_for_on_both_sides():
    state = {"a": frozenset([3])}
    with pytest.raises(TypeError, match="pickle=True"):
        _state.encode(state)
    data = to_bytes(state, pickle=True)
    with pytest.raises(TypeError, match=r"load_checkpoint\(pickle=True\)"):
        _state.decode(data)
    assert _state.decode(data, pickle=True) == state


@pytest.mark.parametrize("data", [b"", b"12345678", b"\xff" * 64, to_bytes({"a": np.ones(3)})[:-1], to_bytes(1)[:12]])
def test_bytes_that_are_no_state_are_errors(data):
    with pytest.raises(ValueError, match="no state of warren's"):
        _state.decode(data)


def test_a_state_is_restored_in_place():
    array, items, draws, inner, text = np.zeros(3), [1], np.random.default_rng(1), np.zeros(2), bytearray(b"a")
    target = {"array": array, "items": items, "draws": draws, "number": 1, "tuple": (inner, 1), "text": text}
    source = {"array": np.ones(3), "items": [1, 2], "draws": np.random.default_rng(2), "number": 5,
              "tuple": (np.ones(2), 2), "text": b"bc"}  # fmt: skip
    _state.copy_into(target, source)
    assert target["array"] is array and (array == 1).all()
    assert target["items"] is items and items == [1, 2]
    assert draws.random() == np.random.default_rng(2).random() and target["number"] == 5
    assert target["tuple"][0] is inner and (inner == 1).all() and target["tuple"][1] == 2
    assert target["text"] is text and text == b"bc"


def test_a_dict_is_restored_with_the_keys_of_the_checkpoint_in_their_order():
    target = collections.defaultdict(int, b=1, a=2)
    _state.copy_into(target, {"a": 3, "c": 4, "b": 5})
    assert list(target.items()) == [("a", 3), ("c", 4), ("b", 5)] and target["new"] == 0


def test_an_array_of_another_order_in_memory_takes_the_place_of_the_one_before():
    target = {"a": np.zeros((2, 3))}
    _state.copy_into(target, {"a": np.asfortranarray(np.ones((2, 3)))})
    assert target["a"].flags.fnc and target["a"].all()


@pytest.mark.parametrize("source", [{"a": np.ones(4)}, {"a": np.ones(3, "float32")}, {"b": np.ones(3)}, 3])
def test_a_state_of_other_parts_is_not_restored(source):
    for target in {"a": np.zeros(3)}, _state.outline({"a": np.zeros(3)}):
        with pytest.raises(ValueError, match="state"):
            _state.copy_into(target, source)
