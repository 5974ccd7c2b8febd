"""The benchmarks: their table, what they skip, and that the references compute the same."""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path

import numpy as np
import pytest

import attendre_core as at
from attendre_core import numba_kernels
from attendre_core.backend import backend as backend_named
from attendre_core.cli import main
from attendre_core.speed import (
    Figure,
    Ratio,
    Results,
    Target,
    chart,
    markdown,
    measure_all,
    page,
)
from attendre_core.speed.counts import LIMITS, calls, small_step
from attendre_core.speed.headlines import HEADLINES, headlines
from attendre_core.speed.steps import Running, layer_of
from attendre_core.speed.timing import of_pairs, ratio, threads

DOCS = Path(__file__).parent.parent / "docs"
ONE = Figure(3, "a step", Target("at most", 2.0), Ratio(1.5, 1.25, 1.75, 9), "n")


def test_a_verdict_is_the_target_s():
    found = Ratio(1.3, 1.2, 1.4, 9)
    assert Figure(1, "x", Target("at most", 1.2), found).verdict == "short"
    assert Figure(1, "x", Target("at least", 1.2), found).verdict == "pass"
    assert Figure(1, "x", Target("at least", 1.2), None, "no peer").verdict == "skipped"


def test_the_table_shows_quartiles_and_notes():
    line = "| 3 | a step | ≤ 2 | 1.50 (1.25 to 1.75) | pass | n |"
    assert markdown([ONE]).splitlines()[-1] == line


def test_more_work_has_a_larger_ratio():
    found = ratio(lambda: sum(range(300_000)), lambda: sum(range(3_000)), repeats=9)
    assert found.low <= found.median <= found.high
    assert found.median > 5


def test_quartiles_are_those_of_the_pairs():
    assert of_pairs([(1.0, 1.0), (2.0, 1.0), (6.0, 2.0), (4.0, 1.0), (5.0, 1.0)]) == Ratio(
        3.0, 2.0, 4.0, 5
    )


def test_threads_leave_the_environment_as_it_was(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    with threads(1):
        import os

        assert os.environ["OMP_NUM_THREADS"] == os.environ["MKL_NUM_THREADS"] == "1"
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_what_is_written_by_hand_computes_what_the_layer_computes(library):
    """A reference that did less work than the layer would be no reference."""
    references = pytest.importorskip(f"attendre_core.speed.{library}_references")
    backend = backend_named(library)
    ours = Running(backend, layer_of(64, None), seq=16)
    by_hand = references.HandWritten(64, 8, 64, 16)
    rng = np.random.default_rng(3)
    for step in range(12):
        arrays = (rng.standard_normal((1, 16, 8, 64), dtype=np.float32) for _ in range(3))
        ours.chunks = [at.Chunk(*(backend.from_numpy(a) for a in arrays))]
        got, want = backend.to_numpy(ours()), backend.to_numpy(by_hand(ours.chunk))
        if step >= 64 // 16:
            np.testing.assert_allclose(got, want, atol=1e-4)
    assert int(ours.state.kv.evictions[0]) > 0


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_gathering_by_hand_attends_to_the_same(library):
    references = pytest.importorskip(f"attendre_core.speed.{library}_references")
    backend = backend_named(library)
    rng = np.random.default_rng(4)
    query, key, value = (
        backend.from_numpy(rng.standard_normal((1, 8, n, 64), dtype=np.float32))
        for n in (5, 32, 32)
    )
    memory = layer_of(32, 4).kv_memory

    def rows(x):
        return backend.xp.permute_dims(x, (0, 2, 1, 3))

    state = memory.init(batch=1, heads=8, head_dim=64, xp=library)
    state, _ = memory.insert(state, rows(key), rows(value))
    _, ours = memory.attend(state, rows(query), top_k=4)
    theirs = rows(references.gathered_attention(query, key, value, 4))
    np.testing.assert_allclose(backend.to_numpy(ours), backend.to_numpy(theirs), atol=1e-5)


@pytest.fixture
def no_machine_code_runs(monkeypatch):
    """Let every function in machine code raise."""
    if not numba_kernels.installed():
        pytest.skip("needs numba: pip install 'attendre-core[compiled]'")

    def refuse(*arguments):
        raise AssertionError("machine code ran")

    for found in pkgutil.iter_modules(numba_kernels.__path__):
        module = importlib.import_module(f"attendre_core.numba_kernels.{found.name}")
        for name, value in vars(module).items():
            if type(value).__name__ == "CPUDispatcher":
                monkeypatch.setattr(module, name, refuse)


@pytest.mark.usefixtures("no_machine_code_runs")
def test_calls_of_the_library_are_no_machine_code():
    """Neither to attend nor to insert: a figure without Numba is measured without it."""
    references = pytest.importorskip("attendre_core.speed.torch_references")
    run = Running(backend_named("torch"), layer_of(64, 8), seq=16)
    variants = {variant.name: variant.context for variant in references.step_variants()}
    with references.inference():
        with variants["eager step in calls of the library"]():
            run.filled()
        with pytest.raises(AssertionError, match="machine code ran"):
            run()


@pytest.mark.parametrize("library", sorted(LIMITS))
def test_a_small_step_makes_no_more_calls_than_it_did(library):
    """A guard by count: it neither depends on the machine nor on the library's version."""
    if library != "numpy":
        pytest.importorskip(library)
    found = calls(small_step(library))
    assert found <= LIMITS[library], f"{found} calls a step, {LIMITS[library]} were enough"
    assert found >= 0.7 * LIMITS[library], f"only {found} calls: lower the limit in counts.py"


def test_single_rows_can_be_measured():
    pytest.importorskip("torch")
    figures = list(measure_all(("torch",), quick=True, rows=(6,)))
    assert [f.row for f in figures] == [6, 6]
    assert all(f.ratio is not None and f.ratio.median > 0 for f in figures)


def test_a_backend_without_references_is_refused(capsys):
    assert main(["bench", "--backend", "numpy"]) == 2
    assert "expected torch or jax" in capsys.readouterr().err


def test_a_missing_peer_is_skipped_and_says_how_to_install_it(monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.setitem(__import__("sys").modules, "attendre_core.speed.torch_peers", None)
    assert main(["bench", "--quick", "--backend", "torch", "--row", "10", "--json"]) == 0
    (figure,) = json.loads(capsys.readouterr().out)["figures"]
    assert figure["verdict"] == "skipped"
    assert "pip install --no-deps memorizing-transformers-pytorch" in figure["note"]


def test_results_are_saved_and_made_into_a_page(tmp_path, capsys):
    saved, made = tmp_path / "bench.json", tmp_path / "bench.md"
    results = Results((ONE,), {"threads": 2}, {"3": "why"}, {"numpy: calls": 5})
    results.save(saved)
    assert Results.load(saved).as_dict() == results.as_dict()
    assert main(["bench", "--from", str(saved), "--page", str(made), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"][0]["verdict"] == "pass"
    assert "1.50 (1.25 to 1.75)" in made.read_text(encoding="utf-8")
    assert "wall time" in made.read_text(encoding="utf-8")
    assert made.with_suffix(".svg").read_text(encoding="utf-8").count('class="target"') == 1


def test_single_rows_are_measured_again(tmp_path, monkeypatch, capsys):
    def figure(row, name, median):
        return Figure(row, name, Target("at most", 2.0), Ratio(median, 1.0, 2.0, 9))

    saved = tmp_path / "bench.json"
    old = [(1, "torch: a"), (4, "torch: b"), (11, "torch: c"), (4, "jax: b")]
    facts = {"python": "3.11.0", "threads": 1}
    Results([figure(*one, 1.0) for one in old], facts, {"4": "why"}, {"numpy: calls": 5}).save(
        saved
    )
    new = [figure(4, "torch: b", 1.5), figure(12, "torch: d", 1.5), figure(12, "torch: e", 1.5)]
    monkeypatch.setattr("attendre_core.speed.measure_all", lambda *_, **__: iter(new))
    here = {"python": "3.13.0", "threads": 1}
    monkeypatch.setattr("attendre_core.speed.environment", lambda *_: here)
    update = ["bench", "--from", str(saved), "--save", str(saved), "--row", "4", "12"]
    assert main([*update, "--backend", "torch", "--page", str(tmp_path / "bench.md")]) == 0
    capsys.readouterr()
    found = Results.load(saved)
    assert [(f.row, f.name, f.ratio.median) for f in found.figures] == [
        (1, "torch: a", 1.0), (4, "torch: b", 1.5), (11, "torch: c", 1.0),
        (12, "torch: d", 1.5), (12, "torch: e", 1.5), (4, "jax: b", 1.0),
    ]  # fmt: skip
    assert found.remarks == {"4": "why"}
    assert found.counts == {"numpy: calls": 5}
    assert found.environment == {**facts, "later": {"4": here, "12": here}}
    shown = (tmp_path / "bench.md").read_text()
    assert "Rows 4, 12: None, None cores, None, Python 3.13.0" in shown
    # Measured as the others were, a row needs no remark.
    again = found.updated(Results(new[:1], facts))
    assert again.environment == {**facts, "later": {"12": here}}


def test_remarks_are_shown_where_a_row_falls_short():
    slow = Figure(3, "a step", Target("at most", 1.0), Ratio(1.5, 1.25, 1.75, 9))
    assert "it is hard" in page(Results((slow,), {}, {"3": "it is hard"}))
    assert "it is hard" not in page(Results((ONE,), {}, {"3": "it is hard"}))


def test_broken_results_are_refused(tmp_path, capsys):
    broken = tmp_path / "broken.json"
    broken.write_text('{"figures": [{"row": 1}]}')
    assert main(["bench", "--from", str(broken)]) == 2
    assert "attendre bench --save" in capsys.readouterr().err


def test_the_page_in_the_documentation_is_made_from_its_results():
    results = Results.load(DOCS / "benchmarks.json")
    assert (DOCS / "benchmarks.md").read_text(encoding="utf-8") == page(results)
    assert (DOCS / "benchmarks.svg").read_text(encoding="utf-8") == chart(results.figures)


def test_every_headline_is_measured():
    results = Results.load(DOCS / "benchmarks.json")
    assert len(headlines(results.figures)) == len(HEADLINES)


def test_every_row_that_falls_short_says_why():
    results = Results.load(DOCS / "benchmarks.json")
    short = {str(f.row) for f in results.figures if f.verdict == "short"}
    assert short <= set(results.remarks)
    assert {f.row for f in results.figures} == set(range(1, 14))
