"""The benchmark: its table, what it skips, and that its references compute the same."""

from __future__ import annotations

import json

import numpy as np
import pytest

import attendre_core as at
from attendre_core.benchmark import Figure, Target, markdown, measure_all
from attendre_core.benchmark.steps import Running, layer_of
from attendre_core.benchmark.timing import Ratio, ratio
from attendre_core.cli import main


def test_a_verdict_is_the_target_s():
    found = Ratio(1.3, 1.2, 1.4, 9)
    assert Figure(1, "x", Target("at most", 1.2), found).verdict == "short"
    assert Figure(1, "x", Target("at least", 1.2), found).verdict == "pass"
    assert Figure(1, "x", Target("at least", 1.2), None, "no peer").verdict == "skipped"


def test_the_table_shows_quartiles_and_notes():
    table = markdown([Figure(3, "a step", Target("at most", 2.0), Ratio(1.5, 1.25, 1.75, 9), "n")])
    assert table.splitlines()[-1] == "| 3 | a step | ≤ 2 | 1.50 (1.25 to 1.75) | pass | n |"


def test_more_work_has_a_larger_ratio():
    found = ratio(lambda: sum(range(300_000)), lambda: sum(range(3_000)), repeats=9)
    assert found.low <= found.median <= found.high
    assert found.median > 5


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_what_is_written_by_hand_computes_what_the_layer_computes(library):
    """A reference that did less work than the layer would be no reference."""
    references = pytest.importorskip(f"attendre_{library}.references")
    backend = at.backend(library)
    ours = Running(backend, layer_of(64, None), seq=16)
    by_hand = references.HandWritten(64, 8, 64, 16)
    rng = np.random.default_rng(3)
    for step in range(12):
        arrays = (rng.standard_normal((1, 16, 8, 64), dtype=np.float32) for _ in range(3))
        ours.chunk = at.Chunk(*(backend.from_numpy(a) for a in arrays))
        got, want = backend.to_numpy(ours()), backend.to_numpy(by_hand(ours.chunk))
        if step >= 64 // 16:
            np.testing.assert_allclose(got, want, atol=1e-4)
    assert int(ours.state.kv.evictions[0]) > 0


def test_single_rows_can_be_measured():
    pytest.importorskip("torch")
    figures = list(measure_all(("torch",), quick=True, rows=(6,)))
    assert [f.row for f in figures] == [6, 6]
    assert all(f.ratio is not None and f.ratio.median > 0 for f in figures)


def test_a_backend_without_references_is_refused(capsys):
    assert main(["bench", "--backend", "numpy"]) == 2
    assert "expected torch or jax" in capsys.readouterr().err


def test_skipped_rows_say_why(capsys):
    pytest.importorskip("torch")
    assert main(["bench", "--quick", "--backend", "torch", "--row", "8", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert {f["verdict"] for f in figures} == {"skipped"}
    assert all("--quick" in f["note"] for f in figures)
