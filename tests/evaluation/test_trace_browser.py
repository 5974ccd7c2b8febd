"""The page in a browser computes what Python computes, and runs no script but its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.cli import main
from attendre_core.evaluation.tracing.record import HELD, STATES
from attendre_core.evaluation.tracing.trace_page import page_of

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)


class Texts(HTMLParser):
    """Collects the text and the attributes of elements with an id, and the cells of the table."""

    def __init__(self, dom: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: dict[str, str] = {}
        self.attributes: dict[str, dict[str, str | None]] = {}
        self.cells: list[str] = []
        self.feed(dom)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        name = found.get("id") or ("body" if tag == "body" else "")
        if name:
            self.texts[name], self.attributes[name] = "", found
        if tag in ("td", "th"):
            self.cells.append("")
        if tag not in ("meta", "link", "input", "br", "img", "wbr"):
            self.open.append(name)

    def handle_endtag(self, tag: str) -> None:
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for name in filter(None, self.open):
            self.texts[name] += data
        if "table" in self.open and self.cells:
            self.cells[-1] += data


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium (on Debian: apt-get install chromium)")
class TestInTheBrowser:
    """Chromium without a screen opens the page from a file."""

    @pytest.fixture
    def opened(self, tmp_path: Path) -> Any:
        def open_page(page: str, place: str = "", *options: str, script: str = "") -> Texts:
            if script:
                # A test may run a script of its own only where the page's rule is taken away.
                page = re.sub(r"<meta http-equiv[^>]*>", "", page)
                page = page.replace("</body>", f"<script>{script}</script></body>")
            file = tmp_path / "trace.html"
            file.write_text(page, encoding="utf-8")
            root = hasattr(os, "geteuid") and os.geteuid() == 0
            done = subprocess.run(
                [
                    str(BROWSER), "--headless", "--disable-gpu", "--no-first-run",
                    *(["--no-sandbox"] if root else []), *options,
                    f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr",
                    "--virtual-time-budget=5000", "--dump-dom", f"{file.as_uri()}{place}",
                ],
                capture_output=True, encoding="utf-8", timeout=120, check=True,
            )  # fmt: skip
            complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
            assert not complaints, "\n".join(complaints)
            return Texts(done.stdout)

        return open_page

    def test_it_computes_what_python_computes(self, opened: Any, made_up: Any) -> None:
        trace = made_up(tuple(f"w{i} " for i in range(300)))
        texts = opened(page_of(trace), "#policy=1&layer=0&step=17&token=11")
        assert texts.attributes["body"]["data-ready"] == "true"
        layer = trace.policies[1].layers[0]
        held = int((layer.at(17) == HELD).sum())
        assert texts.attributes["text-count"]["data-held"] == str(held)
        assert f"step 17: {STATES[layer.at(17)[11]]}." in texts.texts["detail"]
        assert f"came at step {layer.born[11]}" in texts.texts["detail"]
        rows = np.asarray([cell.strip() for cell in texts.cells[8:]]).reshape(4, 8)
        parts = [(policy, layer) for policy in trace.policies for layer in policy.layers]
        for row, (policy, layer) in zip(rows, parts, strict=True):
            counts = layer.counts()
            assert row[0] == policy.name
            assert row[1:5].astype(int).tolist() == [layer.layer, *counts.values()]
            assert row[5] == f"{layer.survivors[0]} \u201cw{layer.survivors[0]}\u201d"
            until = np.where(layer.gone < 0, layer.steps, layer.gone)
            assert float(row[6]) == pytest.approx((until - layer.born).mean(), abs=0.051)
            assert row[7] == "<i>next</i> 75\u00a0%"

    def test_hostile_text_is_shown_and_does_nothing(
        self, opened: Any, made_up: Any, hostile: tuple[str, ...]
    ) -> None:
        # Half a character can be shown, but not dumped: it is no UTF-8.
        words = tuple(word for word in hostile if word != "\ud83e")
        texts = opened(page_of(made_up(words)), "#step=39")
        assert texts.attributes["body"]["data-ready"] == "true"
        assert "data-harm" not in texts.attributes["body"]
        shown = texts.texts["words"]
        for word in hostile[:9]:
            assert word in shown, f"{word!r} is not shown"
        assert texts.texts["title"] == "A <b>title</b> & more"

    def test_only_its_own_script_runs(self, opened: Any, made_up: Any) -> None:
        page = page_of(made_up(("a", "b")))
        foreign = "<script>document.body.dataset.harm='yes'</script></body>"
        with pytest.raises(AssertionError, match="violates the following Content Security P"):
            opened(page.replace("</body>", foreign))

    def test_the_map_has_the_colour_of_every_state(self, opened: Any, made_up: Any) -> None:
        """Read pixels in the middle of cells, and compare them with the states in Python."""
        trace = made_up(tuple("abcdefghij"), steps=8)
        script = """
        const canvas = document.querySelector(".card canvas");
        const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const found = [];
        for (let step = 0; step < 8; step++) for (let token = 0; token < 10; token++) {
          const x = Math.floor((token + 0.5) / 10 * canvas.width);
          const y = Math.floor((step + 0.5) / 8 * canvas.height);
          found.push([...pixels.data.slice(4 * (y * canvas.width + x)).slice(0, 3)]);
        }
        document.body.dataset.pixels = JSON.stringify(found);
        const style = getComputedStyle(document.documentElement);
        document.body.dataset.palette = JSON.stringify(["ahead", "held", "evicted", "refused"].map(
          (name) => style.getPropertyValue("--" + name).trim()));
        """
        for scheme in (1, 0):  # light, dark
            body = opened(
                page_of(trace), "#layer=0", f"--blink-settings=preferredColorScheme={scheme}",
                script=script,
            ).attributes["body"]  # fmt: skip
            palette = [bytes.fromhex(c[1:]) for c in json.loads(str(body["data-palette"]))]
            want = [list(palette[state]) for state in trace.policies[0].layers[0].map().ravel()]
            assert json.loads(str(body["data-pixels"])) == want
            assert (palette[0] == b"\xff\xff\xff") == (scheme == 1)

    def test_keys_pointer_and_fields(self, opened: Any, made_up: Any) -> None:
        trace = made_up(tuple(f"w{i} " for i in range(60)))
        script = """
        const of = (id) => document.getElementById(id);
        const notes = [];
        const note = () => notes.push(of("detail").textContent.split(":")[0]);
        const press = (key, shiftKey) => {
          of("map").dispatchEvent(new KeyboardEvent("keydown", {key, shiftKey})); note(); };
        press("Home"); press("ArrowRight"); press("ArrowRight", true); press("PageUp");
        press("ArrowDown"); press("ArrowUp"); press("ArrowUp"); press("End"); press("ArrowLeft");
        press("PageDown"); press("ArrowDown");
        const box = of("map").getBoundingClientRect();
        const at = {clientX: box.left + 0.505 * box.width, clientY: box.top + 0.51 * box.height};
        of("map").dispatchEvent(new PointerEvent("pointermove", at)); note();
        of("map").dispatchEvent(new PointerEvent("pointerleave", at)); note();
        of("map").dispatchEvent(new MouseEvent("click", at)); note();
        const set = (id, value, event) => {
          of(id).value = value; of(id).dispatchEvent(new Event(event)); };
        set("step", 7, "input"); set("position", 9, "input"); note();
        document.querySelectorAll(".card input")[1].click();
        set("layer", 1, "change"); set("head", 2, "change"); set("colour", "attention", "change");
        of("only").click();
        document.body.dataset.notes = JSON.stringify(notes);
        document.body.dataset.place = location.hash;
        """
        texts = opened(page_of(trace), "#step=20", script=script)
        notes = [
            (int(a), int(b))
            for a, b in re.findall(r"Token (\d+) .*?, step (\d+)", str(texts.attributes["body"]))
        ]
        assert notes == [
            (0, 20), (1, 20), (11, 20), (11, 0), (11, 1), (11, 0), (11, 0), (59, 0), (58, 0),
            (58, 39), (58, 39),  # keys
            (30, 20), (58, 39), (30, 20),  # pointed at, left again, clicked
            (9, 7),  # sliders
        ]  # fmt: skip
        assert texts.attributes["body"]["data-place"] == "#policy=1&other=0&layer=1&step=7&token=9"
        layer = trace.policies[1].layers[1]
        assert layer.attended is not None
        held = np.flatnonzero(layer.at(7) == HELD)
        assert texts.texts["words"].replace("\u2026", "").split() == [f"w{i}" for i in held]
        best = layer.attended.position[layer.attended.weight[2].argmax()]
        assert texts.texts["strongest"].startswith(f"\u201cw{best}\u201d token {best}: ")

    def test_the_shipped_example_opens_on_a_winner_beside_a_loser(
        self, opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        assert main(["trace", "--out", str(tmp_path / "out")]) == 0
        texts = opened((tmp_path / "out/trace.html").read_text(encoding="utf-8"))
        assert texts.texts["name"] == "attendre"
        assert texts.texts["verdict"] == "\u2713 answers library, 100\u00a0%"
        assert texts.texts["other-verdict"].startswith("\u2717 answers ")
        for told in ("holds all 256 tokens", "holds 48 of 256 tokens (M\u00a0+\u00a0S\u00a0="):
            assert told in texts.texts["policies"]
        assert "where is Ben's house?" in texts.texts["words"]

    def test_the_map_beside_says_what_the_other_memory_does(
        self, opened: Any, made_up: Any
    ) -> None:
        trace = made_up(tuple(f"w{i} " for i in range(60)))
        script = """
        const of = (id) => document.getElementById(id);
        const map = of("other-map");
        const box = map.getBoundingClientRect();
        const at = {clientX: box.left + 0.505 * box.width, clientY: box.top + 0.51 * box.height};
        map.dispatchEvent(new PointerEvent("pointermove", at));
        document.body.dataset.pointed = of("detail").textContent;
        map.dispatchEvent(new MouseEvent("click", at));
        map.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
        document.body.dataset.place = location.hash;
        of("other").value = 1; of("other").dispatchEvent(new Event("change"));
        """
        texts = opened(page_of(trace), "#policy=1&layer=1&step=39", script=script)
        told = str(texts.attributes["body"]["data-pointed"])
        other = trace.policies[0].layers[1]
        assert told.startswith("MT: Token 30 ")
        assert f"step 20: {STATES[other.at(20)[30]]}. It came at step {other.born[30]} " in told
        place = "#policy=1&other=0&layer=1&step=20&token=31"
        assert texts.attributes["body"]["data-place"] == place
        assert "Survival map of <LFA>" in str(texts.attributes["other-map"]["aria-label"])

    @pytest.mark.parametrize("scheme", [1, 0], ids=["light", "dark"])
    def test_the_saved_picture_has_both_maps(self, scheme: int, opened: Any, made_up: Any) -> None:
        """Read what the button hands to the browser, where cells of the maps must be."""
        trace = made_up(tuple("abcdefghij"), steps=8)
        script = """
        const found = [];
        HTMLCanvasElement.prototype.toBlob = function (done, type = "image/png") {
          const pixels = this.getContext("2d").getImageData(0, 0, this.width, this.height);
          for (const left of [40, 820]) for (let y = 0; y < 8; y++) for (let x = 0; x < 10; x++) {
            const row = Math.floor(192 + (y + 0.5) / 8 * 420);
            const place = row * this.width + Math.floor(left + (x + 0.5) * 74);
            found.push([...pixels.data.slice(4 * place).slice(0, 3)]);
          }
          done(new Blob([], {type}));
        };
        HTMLAnchorElement.prototype.click = function () {
          document.body.dataset.file = `${this.download} ${this.protocol}`;
        };
        document.getElementById("save").click();
        const style = getComputedStyle(document.documentElement);
        document.body.dataset.palette = JSON.stringify(["ahead", "held", "evicted", "refused"].map(
          (name) => style.getPropertyValue("--" + name).trim()));
        document.body.dataset.pixels = JSON.stringify(found);
        """
        body = opened(
            page_of(trace), "#layer=0&policy=1&other=0",
            f"--blink-settings=preferredColorScheme={scheme}", script=script,
        ).attributes["body"]  # fmt: skip
        assert body["data-file"] == "attendre-trace.png blob:"
        palette = [bytes.fromhex(c[1:]) for c in json.loads(str(body["data-palette"]))]
        want = [
            list(palette[state])
            for policy in (trace.policies[1], trace.policies[0])
            for state in policy.layers[0].map().ravel()
        ]
        assert json.loads(str(body["data-pixels"])) == want

    def test_windows_line_breaks_and_room_are_named(self, opened: Any, made_up: Any) -> None:
        trace = made_up(("one\n", "two ", "\n", "three "), steps=4)
        first, *others = (
            replace(policy, layers=(replace(policy.layers[0], window=8), policy.layers[1]))
            for policy in trace.policies
        )
        memory = at.preset("attendre-causal", 5, chunk=1)
        traced = replace(trace, policies=(first, *(replace(o, memory=memory) for o in others)))
        texts = opened(page_of(traced), "#policy=1&layer=0&token=2")
        assert "0 (sliding window of 8)" in texts.texts["layer"]
        told = texts.texts["text-count"].replace("\u00a0", " ")
        assert "tokens (sliding window of 8, room for 5) in memory." in told
        assert texts.texts["words"].startswith("one\u21b5\ntwo \u21b5\nthree")
        assert "Token 2 \u201c\u21b5\u201d" in texts.texts["detail"]
        assert texts.cells[9] == "0 (window)"
        above = opened(page_of(traced), "#policy=1&layer=1").texts["text-count"]
        assert "(M\u00a0+\u00a0S\u00a0=\u00a05\u00a0+\u00a01 per head)" in above
        assert "Every head keeps its own" in above

    def test_long_texts_open_and_narrow_screens_do_not_scroll_sideways(
        self, opened: Any, made_up: Any
    ) -> None:
        trace = made_up(tuple(f"word{i} " for i in range(20_000)), steps=1250, size=256)
        script = """
        document.body.dataset.widths = JSON.stringify(
          [document.documentElement.scrollWidth, window.innerWidth]);
        """
        texts = opened(page_of(trace), "#token=19000", "--window-size=500,900", script=script)
        assert texts.attributes["body"]["data-ready"] == "true"
        assert int(texts.cells[10]) == trace.policies[0].layers[0].survivors.size
        assert texts.texts["page-text"] == "tokens 18000 to 19999 of 20000"
        scrolled, window = json.loads(str(texts.attributes["body"]["data-widths"]))
        assert scrolled <= window
