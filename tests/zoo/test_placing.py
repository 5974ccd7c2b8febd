"""Tensors of files become arrays of libraries: shared where they fit, else exactly converted."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from attendre_core.backend import backend
from attendre_core.zoo.architectures.base import Tensor
from attendre_core.zoo.loading import placing
from attendre_core.zoo.loading.mapping import mapped_bytes, release
from attendre_core.zoo.loading.placing import NUMPY_DTYPES, Stored, placed

DTYPES = tuple(NUMPY_DTYPES)
EXTREMES = [0.0, -0.0, np.inf, -np.inf, 65504.0, 70000.0, 1e-8, 3.4e38, -1e-40, 1 + 2**-8, 2**-24]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Convert a few rows at a time, so that the last piece is a part of one."""
    monkeypatch.setattr(placing, "_PIECE", 100)


def numbers(shape=(13, 5)):
    values = np.random.default_rng(0).standard_normal(shape)
    values.reshape(-1)[: len(EXTREMES)] = EXTREMES
    return values


def place(stored, dtype, library="numpy", shape=(), **part):
    found = backend(library)
    return placed(stored, Tensor("x", shape, **part), found, dtype, found.find_device(None))


@pytest.mark.parametrize("wanted", DTYPES)
@pytest.mark.parametrize("given", DTYPES)
def test_numbers_are_those_of_the_cast_of_torch(given, wanted):
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(numbers()).to(getattr(torch, given))
    bits = tensor.view(torch.int16).numpy().view("u2") if given == "bfloat16" else tensor.numpy()
    got = place(Stored(bits, given), wanted, "torch")
    assert torch.equal(got, tensor.to(getattr(torch, wanted)))


@pytest.mark.parametrize("wanted", ["float32", "bfloat16"])
def test_what_is_no_number_stays_none(wanted):
    pytest.importorskip("torch")
    array = np.asarray([np.nan, -np.nan, 1.0], np.float16)
    array[:2].view(np.uint16)[:] |= 0x1FF
    assert place(Stored(array, "float16"), wanted, "torch").isnan().tolist() == [True, True, False]


def test_parts_turned_reordered_and_decoded(library):
    array = np.random.default_rng(0).standard_normal((13, 5), dtype=np.float32)
    order = np.random.default_rng(1).permutation(13)
    stored = {
        "plain": (Stored(array, "float32"), array),
        "ordered": (Stored(array, "float32", order=order), array[order]),
        "decoded": (Stored(array, "float32", (13, 10), lambda x: np.tile(x, 2)), np.tile(array, 2)),
        "both": (Stored(array, "float32", (13, 5), lambda x: -x, order), -array[order]),
    }
    for each, want in stored.values():
        assert each.full_shape == want.shape
        for dtype in ("float32", "float16"):
            cast = want.astype(dtype)
            for got, expected in (
                (place(each, dtype, library), cast),
                (place(each, dtype, library, rows=(4, 11)), cast[4:11]),
                (place(each, dtype, library, transposed=True), cast.T),
                (place(each, dtype, library, rows=(0, 3), transposed=True), cast[:3].T),
            ):
                assert np.array_equal(np.asarray(backend(library).to_numpy(got)), expected)


def test_a_library_that_shares_nothing_gets_the_same():
    pytest.importorskip("array_api_strict")
    array = numbers().astype(np.float32)
    got = place(Stored(array, "float32"), "float32", "array_api_strict")
    assert np.array_equal(np.asarray(got), array)


def test_memory_that_was_given_back_is_read_again(tmp_path):
    (tmp_path / "file").write_bytes(np.arange(4 * mmap.PAGESIZE, dtype=np.uint8).tobytes())
    data = mapped_bytes(tmp_path / "file")
    before = data.copy()
    release(data[100 : 2 * mmap.PAGESIZE + 5])
    release(data)
    assert np.array_equal(data, before)
    memory = np.arange(9)
    release(memory)  # not mapped: nothing happens to it
    assert memory.tolist() == list(range(9))
