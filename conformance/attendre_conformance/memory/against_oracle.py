"""A memory against the oracle: which row, which step, got what, expected what."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from attendre_conformance.comparing import ABSOLUTE, RELATIVE, assert_close
from attendre_conformance.memory.running import kept
from attendre_conformance.memory.streams import Chunk
from attendre_conformance.oracle import Attended, Entry, OracleMemory


def oracle_insert(oracle: OracleMemory, chunk: Chunk) -> list[list[list[Entry]]]:
    """Insert a chunk into the oracle."""
    return oracle.insert(
        chunk.key.tolist(),
        chunk.value.tolist(),
        chunk.position.tolist(),
        chunk.valid.tolist(),
        None if chunk.pinned is None else chunk.pinned.tolist(),
        None if chunk.score is None else chunk.score.tolist(),
    )


def oracle_attend(
    oracle: OracleMemory, chunk: Chunk, top_k: int | None, causal: bool
) -> list[Attended]:
    """Let the queries of a chunk attend to the oracle."""
    return oracle.attend(
        chunk.query.tolist(),
        chunk.query_position.tolist(),
        chunk.query_valid.tolist(),
        top_k,
        causal,
    )


def oracle_kept(oracle: OracleMemory) -> list[Any]:
    """Positions the oracle holds, in the form of `running.kept`."""
    found = [
        [sorted(entry.position for entry in memory.entries) for memory in row]
        for row in oracle.rows
    ]
    return found if oracle.rule.per_head else [row[0] for row in found]


def assert_kept(state: Any, oracle: OracleMemory, where: str) -> None:
    """Check that the memory holds exactly the positions the oracle holds."""
    got, want = kept(state), oracle_kept(oracle)
    assert got == want, f"{where}: positions kept {got}, the oracle keeps {want}"


def assert_scores(state: Any, oracle: OracleMemory, where: str) -> None:
    """Check the score of every stored entry, and the clocks of every row."""
    groups = oracle.groups
    lead = (oracle.batch, groups)
    position = np.asarray(state.position).reshape((*lead, -1))
    valid = np.asarray(state.valid).reshape((*lead, -1))
    score = np.asarray(state.score).reshape((*lead, -1))
    arrival = np.asarray(state.arrival).reshape((*lead, -1))
    for b, row in enumerate(oracle.rows):
        for g, memory in enumerate(row):
            want = {e.position: (e.arrival, e.score) for e in memory.entries}
            size = max([1.0] + [abs(e.score) for e in memory.entries])
            for slot in np.nonzero(valid[b, g])[0]:
                place = int(position[b, g, slot])
                got = (int(arrival[b, g, slot]), float(score[b, g, slot]))
                assert got[0] == want[place][0], (
                    f"{where}, row {b}, group {g}: the entry at position {place} has arrival "
                    f"{got[0]}, the oracle says {want[place][0]}"
                )
                assert abs(got[1] - want[place][1]) <= RELATIVE * size + ABSOLUTE, (
                    f"{where}, row {b}, group {g}: the entry at position {place} has score "
                    f"{got[1]!r}, the oracle says {want[place][1]!r}"
                )
    clock = np.asarray(state.clock).tolist()
    expected = [row[0].clock for row in oracle.rows]
    assert clock == expected, f"{where}: clock {clock}, the oracle counted {expected} valid entries"


def assert_evicted(evicted: Any, want: list[list[list[Entry]]], per_head: bool, where: str) -> None:
    """Check that exactly the oracle's entries came out, with their keys and values."""
    for b, row in enumerate(want):
        for g, entries in enumerate(row):
            got = evicted_items(evicted, b, g if per_head else None)
            expected = Counter(
                (e.position, tuple(np.ravel(e.key)), tuple(np.ravel(e.value))) for e in entries
            )
            assert got == expected, (
                f"{where}, row {b}, group {g}: evicted positions {sorted(x[0] for x in got)} "
                f"(entries {sorted(got)}), the oracle evicts {sorted(x[0] for x in expected)} "
                f"(entries {sorted(expected)})"
            )


def evicted_items(evicted: Any, row: int, head: int | None = None) -> Counter[Any]:
    """Count the evicted entries of one row as (position, key, value)."""
    key, value = np.asarray(evicted.key)[row], np.asarray(evicted.value)[row]
    position, valid = np.asarray(evicted.position)[row], np.asarray(evicted.valid)[row]
    if head is not None:
        key, value = key[:, head], value[:, head]
        position, valid = position[head], valid[head]
    return Counter(
        (int(position[s]), tuple(np.ravel(key[s]).tolist()), tuple(np.ravel(value[s]).tolist()))
        for s in range(key.shape[0])
        if valid[s]
    )


def stored_items(entries: Any, row: int, head: int | None = None) -> Counter[Any]:
    """Count the stored entries of one row as (position, key, value)."""
    return evicted_items(entries, row, head)


def assert_outputs(output: Any, want: list[Attended], where: str) -> None:
    """Check the output of every query and head."""
    got = np.asarray(output)
    assert np.all(np.isfinite(got)), f"{where}: outputs are not finite: {got.tolist()}"
    expected = np.zeros(got.shape)
    for b, row in enumerate(want):
        for i, heads in enumerate(row.output):
            for h, vector in enumerate(heads):
                expected[b, i, h, : len(vector)] = vector
    assert_close(got, expected, f"{where}: output (batch, query, head, dim)")


def assert_retrieved(retrieved: Any, want: list[Attended], where: str) -> None:
    """Check positions, order, similarity and contents of what every query retrieved."""
    position, valid = np.asarray(retrieved.position), np.asarray(retrieved.valid)
    key, value = np.asarray(retrieved.key), np.asarray(retrieved.value)
    similarity = np.asarray(retrieved.similarity)
    for b, row in enumerate(want):
        for i, heads in enumerate(row.selected):
            for h, chosen in enumerate(heads):
                here = f"{where}, row {b}, query {i}, head {h}"
                got = position[b, i, h][valid[b, i, h]].tolist()
                expected = [e.position for e in chosen]
                assert got == expected, (
                    f"{here}: retrieved positions {got}, the oracle retrieves {expected} "
                    f"with similarities {row.similarity[i][h]}"
                )
                assert valid[b, i, h].tolist() == sorted(valid[b, i, h].tolist(), reverse=True), (
                    f"{here}: missing entries must come last, valid is {valid[b, i, h].tolist()}"
                )
                for n, entry in enumerate(chosen):
                    g = h // (key.shape[2] // len(entry.key)) if len(entry.key) > 1 else 0
                    assert key[b, i, h, n].tolist() == entry.key[g], (
                        f"{here}: key {key[b, i, h, n].tolist()} at rank {n}, expected "
                        f"{entry.key[g]} of position {entry.position}"
                    )
                    assert value[b, i, h, n].tolist() == entry.value[g], (
                        f"{here}: value {value[b, i, h, n].tolist()} at rank {n}, expected "
                        f"{entry.value[g]} of position {entry.position}"
                    )
                assert_close(
                    similarity[b, i, h][valid[b, i, h]],
                    np.asarray(row.similarity[i][h]),
                    f"{here}: similarity",
                )
