"""The page is complete, loads nothing, and shows any text as text."""

from __future__ import annotations

import base64
import importlib
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attendre_core.cli import main
from attendre_core.evaluation.tracing import TextTrace
from attendre_core.evaluation.tracing.trace_page import page_data, page_of

DOCS = Path(__file__).resolve().parents[2] / "docs"


def data_in(page: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    found: dict[str, Any] = json.loads(text)
    return found


def unpacked(data: dict[str, Any], number: int) -> list[int]:
    width, text = data["packed"][number]
    return np.frombuffer(base64.b64decode(text), dtype=f"<u{width}").astype(int).tolist()


def test_no_address_is_in_the_page(made_up: Any) -> None:
    page = page_of(made_up(("plain", "words")))
    assert not re.search(r"https?:", page)
    own = re.sub(r'id="data">.*?</script>', "", page, flags=re.S)
    assert not re.search(r"[\"'(]//|@import|url\(|\bsrc=|fetch\(|XMLHttp|import\(", own)
    assert "default-src &#x27;none&#x27;" in page


def test_hostile_text_stays_text(made_up: Any, hostile: tuple[str, ...]) -> None:
    page = page_of(made_up(hostile))
    assert page.count("<script") == page.count("</script") == 2
    assert page.count("<img") == page.count("<!--") == 0
    assert json.dumps(hostile[13])[1:-1] in page
    assert tuple(data_in(page)["words"]) == hostile
    assert "<title>A &lt;b&gt;title&lt;/b&gt; &amp; more</title>" in page


def test_data_are_the_lives(made_up: Any) -> None:
    trace = made_up(tuple(f"w{i} " for i in range(300)))
    data = data_in(page_of(trace))
    assert data == json.loads(json.dumps(page_data(trace)))
    for policy, shown in zip(trace.policies, data["policies"], strict=True):
        assert (shown["name"], shown["steps"]) == (policy.name, policy.steps)
        for layer, part in zip(policy.layers, shown["layers"], strict=True):
            assert unpacked(data, part["born"]) == layer.born.tolist()
            assert unpacked(data, part["gone"]) == (layer.gone + 1).tolist()
            assert unpacked(data, part["reason"]) == layer.reason.tolist()
            assert layer.attended is not None
            heads = np.asarray(unpacked(data, part["attention"]["weight"])).reshape(3, -1)
            assert heads / 65535 == pytest.approx(layer.attended.weight, abs=1e-5)
            position = unpacked(data, part["attention"]["position"])
            assert position == layer.attended.position.tolist()


def test_equal_arrays_are_stored_once_and_numbers_in_few_bytes(made_up: Any) -> None:
    trace = made_up(("a",) * 300)
    twice = TextTrace("", trace.words, trace.policies[:1] * 2)
    assert len(page_data(twice)["packed"]) == len(
        page_data(TextTrace("", trace.words, trace.policies[:1]))["packed"]
    )
    assert {width for width, _ in page_data(twice)["packed"]} == {1, 2}
    far = made_up(("a",) * 300, steps=70_000)
    assert 4 in {width for width, _ in page_data(far)["packed"]}


def test_the_copy_in_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the page of the command, small, and the guide shows it and has a title for it."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.syspath_prepend(str(DOCS / "site"))
    live = importlib.import_module("live_trace")
    (tmp_path / "html/_static").mkdir(parents=True)
    build = SimpleNamespace(outdir=tmp_path / "html", builder=SimpleNamespace(format="html"))
    live.write_live_trace(build, ValueError("the build failed"))
    assert not (tmp_path / "html" / live.PLACE).exists()
    live.write_live_trace(build, None)
    page = (tmp_path / "html" / live.PLACE).read_text(encoding="utf-8")
    assert len(page) < 100_000
    assert main(["trace", "--out", str(tmp_path)]) == 0
    assert page == (tmp_path / "trace.html").read_text(encoding="utf-8")
    guide = (DOCS / "guides/seeing.md").read_text(encoding="utf-8")
    shown = re.search(rf'<iframe src="\.\./{live.PLACE}"[^>]* title="([^"]+)"', guide)
    assert shown is not None
    assert "six memories" in shown[1]
    assert len(data_in(page)["policies"]) == 6
    assert f'<a href="../{live.PLACE}">' in guide


def test_a_long_text_makes_a_small_page(made_up: Any) -> None:
    page = page_of(made_up(tuple(f"word{i} " for i in range(20_000)), steps=1250, size=256))
    assert len(page) < 2_000_000
