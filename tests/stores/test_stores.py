"""Stores: what is found, what is taken, what a file may not do."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.backend import backend
from attendre_core.stores import store as store_module

LIBRARIES = ("numpy", "torch", "jax")
ENTRIES, HEADS, DIM, WIDTH, BY = 11, 2, 3, 5, 4


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def built(**options: Any) -> at.Store:
    given = {"by": BY, "aux": {"document": np.arange(ENTRIES)}, **options}
    search = given.pop("search", normal(3, ENTRIES, WIDTH))
    return at.Store.build(
        search, normal(1, ENTRIES, HEADS, DIM), normal(2, ENTRIES, HEADS, DIM), **given
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "entries.store"
    built().save(path)
    return path


def test_chunks_have_the_mean_of_their_search_keys() -> None:
    search, query = normal(3, ENTRIES, WIDTH), normal(4, 2, WIDTH)
    means = [search[n : n + BY].mean(axis=0) for n in range(0, ENTRIES, BY)]
    found = built().search(query, top_k=3)
    np.testing.assert_allclose(
        found.similarity, -np.sort(-(query @ np.stack(means).T), axis=1), rtol=1e-5
    )
    assert built(search=np.stack(means)).search(query, 3).index.tolist() == found.index.tolist()


@pytest.mark.parametrize("block", [1, 2, 7, 1000])
def test_search_is_exact_however_it_is_cut(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against all products at once; of equals, the first."""
    monkeypatch.setattr(store_module, "_ROWS", block)
    search = np.round(normal(5, 40, WIDTH))  # with ties
    entries = normal(6, 40, 1, 2)
    store = at.Store.build(search, entries, entries)
    query = np.round(normal(7, 3, 2, WIDTH))
    found = store.search(query, top_k=9)
    products = query @ search.T
    for place in np.ndindex(3, 2):
        want = sorted(range(40), key=lambda n, p=place: (-products[p][n], n))[:9]
        assert found.index[place].tolist() == want
        np.testing.assert_array_equal(found.similarity[place], products[place][want])


@pytest.mark.parametrize("library", LIBRARIES)
def test_opened_on_any_backend_and_attended_to_beside_a_memory(library: str, file: Path) -> None:
    """One softmax over the memory and the two best chunks of each row, by hand."""
    pytest.importorskip(library)
    found = backend(library)
    store = at.Store.open(file, xp=library)
    key, value = normal(8, 2, 3, HEADS, DIM), normal(9, 2, 3, HEADS, DIM)
    query, asked = normal(10, 2, 2, HEADS, DIM), normal(4, 2, WIDTH)
    memory = at.KeyValueMemory(4)
    arrays = [found.from_numpy(a) for a in (key, value, query, asked)]
    state, _ = memory.insert(memory.init(like=arrays[0]), *arrays[:2])
    beside = store.beside(arrays[3], top_k=2)
    _, output = memory.attend(state, arrays[2], beside=beside)
    means = [normal(3, ENTRIES, WIDTH)[n : n + BY].mean(axis=0) for n in range(0, ENTRIES, BY)]
    for row, number, head in np.ndindex(2, 2, HEADS):
        best = np.argsort(-(np.stack(means) @ asked[row]))[:2]
        places = [n for n in range(ENTRIES) if n // BY in best]
        keys = np.concatenate([key[row, :, head], normal(1, ENTRIES, HEADS, DIM)[places, head]])
        values = np.concatenate([value[row, :, head], normal(2, ENTRIES, HEADS, DIM)[places, head]])
        weights = np.exp(keys @ query[row, number, head] / np.sqrt(DIM))
        want = weights @ values / weights.sum()
        got = np.asarray(found.to_numpy(output))[row, number, head]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_nothing_is_read_into_memory(file: Path) -> None:
    store = at.Store.open(file)
    assert all(isinstance(array, np.memmap) for array in store._arrays.values())
    assert not any(array.flags.writeable for array in store._arrays.values())
    taken = store.take([2, 0])
    assert taken["aux.document"].tolist() == [[8, 9, 10, 0], [0, 1, 2, 3]]
    assert taken["valid"].tolist() == [[True, True, True, False], [True] * 4]


def test_others_can_read_the_file(file: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    arrays = numpy.load_file(file)
    np.testing.assert_array_equal(
        arrays["key"].reshape(-1, HEADS, DIM)[:ENTRIES], normal(1, 11, 2, 3)
    )


def test_saving_again_leaves_what_was_there_if_it_fails(file: Path, tmp_path: Path) -> None:
    before = file.read_bytes()
    at.Store.open(file).save(tmp_path / "twin.store")
    assert (tmp_path / "twin.store").read_bytes() == before
    with pytest.raises(at.StateError, match="cannot be written"):
        built().save(tmp_path / "nowhere" / "entries.store")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["entries.store", "twin.store"]


def rewritten(file: Path, change: Any, rest: bytes | None = None) -> None:
    """Change the header of a file, with a checksum that agrees."""
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    about = json.loads(header["__metadata__"]["about"])
    header = change(header, about) or header
    if isinstance(header, dict) and isinstance(header.get("__metadata__"), dict):
        text = json.dumps(about)
        header["__metadata__"] |= {"about": text, "about_checksum": str(zlib.crc32(text.encode()))}
    lead = json.dumps(header).encode()
    body = raw[8 + length :] if rest is None else rest
    file.write_bytes(len(lead).to_bytes(8, "little") + lead + body)


def put(*path: Any, to: Any) -> Any:
    """Return a change of one thing of the header."""

    def change(header: Any, about: Any) -> None:
        at_, *rest = (about, *path[1:-1]) if path[0] == "about" else (header, *path[:-1])
        for name in rest:
            at_ = at_[name]
        at_[path[-1]] = to

    return change


def renamed(old: str, new: str) -> Any:
    def change(header: Any, about: Any) -> Any:
        about["checksums"][new] = about["checksums"].pop(old)
        return {(new if n == old else n): entry for n, entry in header.items()}

    return change


HOSTILE = {
    "a shape beyond the file": put("key", "shape", to=[2**60, 4, 2, 3]),
    "a product that overflows": put("key", "shape", to=[2**31, 2**31, 2**31, 2**31]),
    "a negative shape": put("key", "shape", to=[-3, 4, 2, 3]),
    "a shape of floats": put("key", "shape", to=[3.0, 4, 2, 3]),
    "too many axes": put("key", "shape", to=[1] * 40),
    "another shape of the same size": put("key", "shape", to=[3, 4, 3, 2]),
    "keys for fewer chunks": put("key", "shape", to=[4, 3, 2, 3]),
    "an object": put("key", "dtype", to="O"),
    "flags that are numbers": put("valid", "dtype", to="U8"),
    "offsets before the start": put("key", "data_offsets", to=[-72, 216]),
    "offsets beyond the end": put("value", "data_offsets", to=[348, 10**12]),
    "overlapping arrays": put("value", "data_offsets", to=[60, 348]),
    "no offsets": put("value", "data_offsets", to=None),
    "an entry that is a number": put("value", to=3),
    "another format": put("__metadata__", "format", to="attendre-store-9"),
    "chunks of another size": put("about", "notes", "by", to=3),
    "no checksums": put("about", "checksums", to={}),
    "a wrong checksum": put("about", "checksums", "key", to=1),
    "an array too many": renamed("aux.document", "weights"),
    "an array too few": renamed("valid", "aux.valid"),
    "a header that is a list": lambda header, about: [1],
    "metadata that is a list": put("__metadata__", to=[]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused(name: str, file: Path) -> None:
    rewritten(file, HOSTILE[name])
    with pytest.raises(at.StateError, match=r"Store\.open"):
        at.Store.open(file)


def test_hostile_bytes_are_refused(file: Path) -> None:
    whole = file.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    for raw in (
        b"", whole[:7], whole[:20], whole[:-1], whole + b"x", (2**63).to_bytes(8, "little") + whole,
        b"\xff" * 64, (length + 2).to_bytes(8, "little") + whole[8:],
        whole[:8] + b"[" * length + whole[8 + length :],
    ):  # fmt: skip
        file.write_bytes(raw)
        with pytest.raises(at.StateError, match=r"Store\.open"):
            at.Store.open(file)
    with pytest.raises(at.StateError, match="cannot be read"):
        at.Store.open(file.parent)
    for place in range(8 + length, len(whole), 29):  # every array, and the flags among them
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with pytest.raises(at.StateError, match=r"Store\.open"):
            at.Store.open(file)


def test_a_damaged_file_opens_only_unverified(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[-3] ^= 1  # of aux
    file.write_bytes(raw)
    with pytest.raises(at.StateError, match="checksums"):
        at.Store.open(file)
    assert at.Store.open(file, verify=False).chunks == 3


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        (lambda: built(by=0), at.ConfigError, "by is 0"),
        (lambda: built(search=normal(3, 5, WIDTH)), at.ShapeError, "search is"),
        (lambda: built(aux={"document": np.arange(3)}), at.ShapeError, "document"),
        (lambda: built().search(normal(1, 2, 4), 1), at.ShapeError, "expected"),
        (lambda: built().search(normal(1, 2, WIDTH), 4), at.ConfigError, "top_k is 4"),
        (lambda: built().take([3]), at.ConfigError, "between 0 and 2"),
        (lambda: at.Store.build(*(np.ones((2, 3)),) * 3), at.ShapeError, "twice"),
    ],
)  # fmt: skip
def test_mistakes_are_named(wrong: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        wrong()
