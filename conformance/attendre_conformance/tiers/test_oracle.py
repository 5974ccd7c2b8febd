"""Everything that tiers do, held against plain Python loops."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from attendre_conformance import comparing
from attendre_conformance.memory import against_oracle
from attendre_conformance.memory.streams import Stream, seeded
from attendre_conformance.options import law
from attendre_conformance.running import compiles, few
from attendre_conformance.tiers.cases import EVERY, FAMILIES, TiersCase, case_and_stream

pytestmark = pytest.mark.attendre_profile("eager")

#: Where every case has to be compiled: one of each family, and of each kind of compressor.
COMPILED = ("fifo-fifo", "three", "gate", "mean", "most-used", "merge")


def compare(backend: Any, case: TiersCase, stream: Stream, compiled: bool | None = None) -> int:
    """Run a stream on both sides and compare everything; return the number of steps compared."""
    runner, oracle = case.runner(backend, compiled), case.oracle(stream)
    state = runner.init(stream.shape)
    for number, chunk in enumerate(stream.chunks):
        where = f"{case.name}, step {number}"
        state, evicted, output = runner.step(state, chunk)
        entries = (chunk.key, chunk.value, chunk.position, chunk.valid)
        gone = oracle.insert(*(x.tolist() for x in entries))
        queries = (chunk.query, chunk.query_position, chunk.query_valid)
        asked: list[Any] = [x.tolist() for x in queries]
        want = oracle.attend(asked[0], asked[1], asked[2], case.top_k, case.causal)
        if oracle.gap < comparing.NEAR:
            return number
        now = runner.numpy(state)
        for i, tier in enumerate(case.memory.tiers(now)):
            against_oracle.assert_kept(tier, oracle.tier(i), f"{where}, tier {i}")
            against_oracle.assert_scores(tier, oracle.tier(i), f"{where}, tier {i}")
            assert_contents(tier, oracle, i, f"{where}, tier {i}")
        assert_counted(runner.numpy(evicted), gone, case, where)
        against_oracle.assert_outputs(runner.numpy(output), want, where)
    return len(stream.chunks)


def assert_contents(tier: Any, oracle: Any, number: int, where: str) -> None:
    """Check keys, values and counts of every stored entry."""
    per_head = oracle.rule.first.per_head
    for b, row in enumerate(oracle.rows):
        for g, tiers in enumerate(row):
            at = (b, g) if per_head else (b,)
            valid, position = tier.valid[at], tier.position[at]
            entries = {entry.position: entry for entry in tiers.memories[number].entries}
            for slot in np.nonzero(valid)[0]:
                entry = entries[int(position[slot])]
                for name in ("key", "value"):
                    got = getattr(tier, name)[b, :, slot]
                    got = got[g : g + 1] if per_head else got
                    comparing.assert_close(
                        got, np.asarray(getattr(entry, name)), f"{where}, row {b}: {name}"
                    )
                if tier.aux is not None:
                    count = int(tier.aux["count"][at][slot])
                    want = tiers.counts[number][entry.arrival]
                    assert count == want, f"{where}, row {b}: counts {count}, expected {want}"


def assert_counted(evicted: Any, gone: Any, case: TiersCase, where: str) -> None:
    """Check that exactly the oracle's entries came out of the last tier, with their counts."""
    per_head = case.rule.first.per_head
    for b, row in enumerate(gone):
        for g, moving in enumerate(row):
            at = (b, g) if per_head else (b,)
            valid = evicted.valid[at]
            counts = valid * 1 if evicted.aux is None else evicted.aux["count"][at]
            pairs = (evicted.position[at][valid].tolist(), counts[valid].tolist())
            got = Counter(zip(*pairs, strict=True))
            want = Counter((one.entry.position, one.count) for one in moving)
            assert got == want, f"{where}, row {b}: evicted {got}, the oracle evicts {want}"


@pytest.mark.parametrize("family", FAMILIES)
@law()
@given(data=st.data())
def test_tiers_equal_oracle(backend: Any, family: str, data: st.DataObject) -> None:
    """Kept entries, what they hold, scores, evicted entries and outputs are the oracle's.

    Specification, law-tiers.
    """
    cases = few(backend, FAMILIES[family])
    case, stream = data.draw(case_and_stream(cases), label="case and stream")
    compared = compare(backend, case, stream)
    event("compared to the end" if compared == len(stream.chunks) else "cut short by a near-tie")


@pytest.mark.parametrize("case", EVERY, ids=[case.name for case in EVERY])
def test_long_tiers_equal_oracle(backend: Any, case: TiersCase) -> None:
    """The same on longer streams, in which every tier is full and evicts.

    Specification, law-tiers.
    """
    if compiles(backend) and case.name not in COMPILED:
        pytest.skip("each case would be compiled, and the others show the same code")
    rng, most = np.random.default_rng(3), 0
    for levels in (17, 3):
        plan: dict[str, Any] = {"exact": case.exact, "levels": levels, "percent": 10}
        stream = seeded(case.shape, rng, steps=9, **plan)
        most = max(most, compare(backend, case, stream))
    assert most >= 4, f"{case.name}: only {most} steps could be compared"
