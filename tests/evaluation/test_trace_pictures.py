"""Coarse maps are means of the whole map; words join to the text; the PNG shows what it should."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest

import attendre_core as at
from attendre_core.cli.survival import lines_of
from attendre_core.cli.terminal import Terminal
from attendre_core.evaluation import load_tiny
from attendre_core.evaluation.tasks import LookAhead, word
from attendre_core.evaluation.tracing import TextTrace, trace_text
from attendre_core.evaluation.tracing.coarse import coarse_map, steps_of_rows
from attendre_core.evaluation.tracing.figure import figure_of, write_png
from attendre_core.evaluation.tracing.words import pieces_of


@pytest.fixture(scope="module")
def trace() -> TextTrace:
    (document,) = LookAhead().documents(0, 1, chunks=(8, 8))
    memories = {name: at.preset(name, 32, 16, 16, 16) for name in ("MT", "LRA-sum")}
    return trace_text(
        load_tiny("prefix-lm"), document.tokens, memories, title="costs $5 or $6\n世",
        naming=lambda tokens: [f"{word(token)} " for token in tokens],
    )  # fmt: skip


@pytest.mark.parametrize(("rows", "columns"), [(9, 128), (4, 20), (1, 1), (100, 1000)])
def test_a_coarse_map_is_the_mean_of_the_map(trace: TextTrace, rows: int, columns: int) -> None:
    for policy in trace.policies:
        for layer in policy.layers:
            whole = layer.map()
            got = coarse_map(layer, rows, columns)
            rows, columns = min(rows, layer.steps), min(columns, 128)
            assert got.shape == (4, rows, columns)
            place = np.arange(128) * columns // 128
            for row, step in enumerate(steps_of_rows(layer.steps, rows)):
                for column in range(columns):
                    tokens = whole[step, place == column]
                    want = [(tokens == state).mean() for state in range(4)]
                    assert got[:, row, column].tolist() == pytest.approx(want, abs=1e-6)
    refused = sum(layer.counts()["refused"] for layer in trace.policies[1].layers)
    assert refused, "the example shall have all states"


@pytest.mark.parametrize("text", ["plain words", "naïve 🦎 世界 e\u0301", "\n\n tab\t", "a\ufffdb"])
def test_bytes_become_characters_where_they_end(text: str) -> None:
    def decode(tokens: list[int]) -> str:
        return bytes(tokens).decode("utf-8", errors="replace")

    pieces = pieces_of(decode, list(text.encode()))
    assert "".join(pieces) == text
    assert len(pieces) == len(text.encode())


def test_pieces_keep_spaces_and_survive_nonsense() -> None:
    """SentencePiece takes the space off the first word of whatever it decodes."""
    vocabulary = {1: "", 2: "\u2581the", 3: "\u2581cat", 4: "s"}

    def decode(tokens: list[int]) -> str:
        return "".join(vocabulary[t] for t in tokens).replace("\u2581", " ").removeprefix(" ")

    assert pieces_of(decode, [1, 2, 3, 4, 3]) == ["", "the", " cat", "s", " cat"]

    def broken(tokens: list[int]) -> str:
        return bytes(tokens).decode("utf-8", errors="replace")

    nonsense = [0xFF] * 9 + list(b"end")
    assert "".join(pieces_of(broken, nonsense)).endswith("end")


def test_the_picture(trace: TextTrace, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_png(trace, tmp_path / "trace.png")
    data = (tmp_path / "trace.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    assert width > 1000
    assert height > 500
    figure = figure_of(trace)
    maps = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title(loc="left").split(":")[0] for axes in maps] == [
        "MT\nlayer 0", "MT\nlayer 1", "LRA-sum\nlayer 0", "LRA-sum\nlayer 1",
    ]  # fmt: skip
    # First in, first out in layer 0: pure colours where all tokens of a column share a state.
    pixels = np.rint(np.asarray(maps[0].images[0].get_array()) * 255).astype(int)
    palette = {0: "ffffff", 1: "0072b2", 2: "e3ded4", 3: "e8a33d"}
    want = [
        [tuple(bytes.fromhex(palette[s])) for s in row] for row in trace.policies[0].layers[0].map()
    ]
    assert pixels.tolist() == [[list(colour) for colour in row] for row in want]
    weights = [axes for axes in figure.axes if axes.patches]
    assert len(weights) == 4
    # The bar of the first token is as wide as all others, and the axis is not in front of it.
    seen = trace.policies[1].layers[1].attended
    assert seen is not None
    bars = weights[3].patches
    assert [bar.get_x() for bar in bars] == seen.position.tolist()
    assert {bar.get_width() for bar in bars} == {0.85}
    assert weights[3].spines["left"].get_position() == ("outward", 4)


def test_without_matplotlib_it_says_how_to_get_it(
    trace: TextTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(at.ConfigError, match=r"attendre-core\[eval\]"):
        figure_of(trace)


class TestInATerminal:
    def lines(self, trace: TextTrace, number: int = 0) -> list[str]:
        policy = trace.policies[number]
        return list(lines_of(trace, policy, policy.layers[0], Terminal()))

    def test_first_in_first_out(self, trace: TextTrace) -> None:
        lines = self.lines(trace)
        assert "holds 32 of 128 tokens (M = 32), 96 evicted, 0 refused" in lines[1]
        text = " ".join(lines).partition("[")[2]
        assert text.endswith("]")
        assert text[:-1].split() == "".join(trace.words[96:]).split()

    def test_kept_words_stand_in_brackets(self, trace: TextTrace) -> None:
        layer = trace.policies[1].layers[0]
        text = " ".join(self.lines(trace, 1))
        first = trace.words[layer.survivors[0]].strip()
        assert f"[{first}" in text
        assert "..." in text

    def test_nothing_in_a_text_reaches_the_terminal(self, trace: TextTrace) -> None:
        words = tuple("\x1b[31m\x07evil\u202e " for _ in trace.words)
        hostile = TextTrace(trace.title, words, trace.policies)
        text = "".join(self.lines(hostile))
        assert "evil" in text
        assert not set(text) & {"\x1b", "\x07", "\u202e"}

    def test_long_texts_are_cut(self, trace: TextTrace) -> None:
        words = tuple("averylongwordindeed" * 3 + " " for _ in trace.words)
        lines = self.lines(TextTrace("", words, trace.policies))
        assert "more tokens in memory: see the page" in lines[-1]
        assert len(lines) < 30
