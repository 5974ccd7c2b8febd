"""Seeded mistakes in stores: what is found and taken, what a file may hold, what is deleted."""

from __future__ import annotations

from mutant import Mutant

STORE = "attendre_core/stores/store.py"
FILES = "attendre_core/array_files.py"
HOST = "attendre_core/outside/store.py"
INDEX = "attendre_core/outside/index.py"
TIER = "attendre_core/outside/tier.py"
SEARCH = "beyond/test_stores.py::test_store_search_and_take_are_plain_loops"
SAVED = "beyond/test_stores.py::test_a_saved_store_is_the_same_and_damage_is_refused"
DELETES = "beyond/test_stores.py::test_a_host_store_deletes_for_good"

STORE_MUTANTS = (
    Mutant(
        "a shorter chunk is averaged as if it were whole",
        STORE,
        "sizes = np.minimum(by, count - by * np.arange(chunks))[:, None]",
        "sizes = np.full((chunks, 1), by)",
        SEARCH,
    ),
    Mutant(
        "of equal chunks the later is found",
        STORE,
        'order = np.argsort(-best, axis=1, kind="stable")[:, :top_k]',
        "order = np.argsort(best[:, ::-1], axis=1)[:, ::-1][:, :top_k]",
        SEARCH,
    ),
    Mutant(
        "only the first block of a store is searched",
        STORE,
        "for first in range(0, self.chunks, _ROWS):",
        "for first in range(0, min(self.chunks, _ROWS), _ROWS):",
        SEARCH,
    ),
    Mutant(
        "padding of a store's last chunk is valid",
        STORE,
        '"valid": cut(np.ones(count, dtype=bool)),',
        '"valid": np.ones((chunks, by), dtype=bool),',
        SEARCH,
    ),
    Mutant(
        "a store's checksums are not compared",
        FILES,
        "if verify and any(",
        "if False and any(",
        SAVED,
    ),
    Mutant(
        "a store may hold more bytes than it describes",
        FILES,
        "    if start != size - 8 - length:",
        "    if start > size - 8 - length:",
        SAVED,
    ),
    Mutant(
        "a full store deletes the newest",
        HOST,
        "chosen = held[np.argpartition(arrival[held], count - 1)[:count]]",
        "chosen = held[np.argsort(-arrival[held])[:count]]",
        f"{DELETES}[oldest]",
    ),
    Mutant(
        "the most used is deleted",
        HOST,
        "chosen = held[np.lexsort((arrival[held], score))[:count]]",
        "chosen = held[np.lexsort((arrival[held], -score))[:count]]",
        f"{DELETES}[least-used]",
    ),
    Mutant(
        "a new entry inherits the score of the one it replaces",
        HOST,
        '        self._arrays["score"][row, slots] = 0.0\n',
        "",
        f"{DELETES}[least-used]",
    ),
    Mutant(
        "the index finds the worst",
        INDEX,
        "block = queries @ np.asarray(self._keys[start:stop], dtype=np.float32).T",
        "block = -queries @ np.asarray(self._keys[start:stop], dtype=np.float32).T",
        f"{DELETES}[oldest]",
    ),
    Mutant(
        "entries go out of the device in the order of slots",
        TIER,
        'order = np.argsort(_read(gone.arrival), axis=1, kind="stable")',
        'order = np.argsort(-_read(gone.arrival), axis=1, kind="stable")',
        f"{DELETES}[oldest]",
    ),
    Mutant(
        "what is deleted is not handed back",
        TIER,
        "            out[3][b, :n] = True\n",
        "",
        f"{DELETES}[oldest]",
    ),
)
