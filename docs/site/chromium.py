"""Opens built pages in Chromium, without a screen and without a network."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = (
    "--headless", "--remote-debugging-pipe", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars",
)  # fmt: skip
#: Widths in CSS pixels: a telephone and a screen.
WIDTHS = (390, 1280)

#: What reaches out of the window (on a telephone the content has a bar of its own to scroll it),
#: and code without a button that copies it.
_PROBLEMS = """(() => {
  const found = [];
  for (const box of [document.documentElement, ...document.querySelectorAll(".content")]) {
    const over = box.scrollWidth - box.clientWidth;
    if (over <= 0) continue;
    const edge = box.getBoundingClientRect().left + box.clientWidth;
    const out = [...document.querySelectorAll("article *")].find(
      (e) => e.getBoundingClientRect().right > edge + 1);
    found.push(`${over} px wider than the window: ${out ? out.outerHTML.slice(0, 80) : ""}`);
  }
  for (const code of document.querySelectorAll("div.highlight"))
    if (!code.querySelector("button.copybtn"))
      found.push(`no copy button: ${code.textContent.slice(0, 40)}`);
  return found;
})()"""


def program() -> str | None:
    """Return the path of Chromium, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


#: Chromium reads from file 3 and writes to file 4.
_LAUNCH = """import os, sys
theirs, back, *command = sys.argv[1:]
os.dup2(int(theirs), 3)
os.dup2(int(back), 4)
os.execv(command[0], command)"""


class Chromium:
    """A window of Chromium, spoken to in its DevTools protocol over two pipes."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._from = to, back
        self._rest = b""
        self._number = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        (target,) = (t["targetId"] for t in targets if t["type"] == "page")
        options = {"targetId": target, "flatten": True}
        self._session = self.call("Target.attachToTarget", **options)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _messages(self) -> Iterator[dict[str, Any]]:
        while True:
            message, end, rest = self._rest.partition(b"\0")
            if end:
                self._rest = rest
                yield json.loads(message)
                continue
            more = os.read(self._from, 1 << 20)
            if not more:
                raise RuntimeError("Chromium has ended")
            self._rest += more

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol; what happens meanwhile is among the events."""
        self._number += 1
        request: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._to, json.dumps(request).encode() + b"\0")
        for message in self._messages():
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return dict(message["result"])
            self.events.append(message)
        raise AssertionError

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression in JavaScript, which may be a promise."""
        options = {"expression": script, "returnByValue": True, "awaitPromise": True}
        found = self.call("Runtime.evaluate", **options)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("text"))
        return found["result"].get("value")

    def resize(self, width: int, height: int = 900) -> None:
        """Make the window as wide as this."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def open(self, address: str) -> None:
        """Open a page and wait until it is there; the events of the one before are dropped."""
        self.events.clear()
        self.call("Page.navigate", url=address)
        if not any(event["method"] == "Page.loadEventFired" for event in self.events):
            for event in self._messages():
                self.events.append(event)
                if event.get("method") == "Page.loadEventFired":
                    return


@contextmanager
def started(path: str) -> Iterator[Chromium]:
    """Start Chromium with a profile of its own, and end it."""
    files = [*os.pipe(), *os.pipe()]
    for number, file in enumerate(files):  # out of the way of 3 and 4
        files[number] = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 10)
        os.close(file)
    theirs, to, ours, back = files
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [path, *OPTIONS, *root, f"--user-data-dir={folder}", "about:blank"]
        process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(theirs), str(back), *command],
            pass_fds=(theirs, back), stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            os.close(theirs)
            os.close(back)
            yield Chromium(to, ours)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(to)
            os.close(ours)


def complaints(events: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield what went wrong while a page was open, and what it asked the network for."""
    for event in events:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                text = details.get("exception", {}).get("description") or details["text"]
                yield f"error in a script: {text.splitlines()[0]}"
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                words = " ".join(str(arg.get("value", "")) for arg in params["args"])
                yield f"console: {words}"
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                yield f"console: {params['entry']['text']}"
            case "Network.requestWillBeSent":
                address = params["request"]["url"]
                if not address.startswith(("file:", "data:", "blob:")):
                    yield f"loads {address}"


def problems_in_browser(folder: Path, pages: Sequence[Path], path: str) -> Iterator[str]:
    """Open every page; yield errors, loads from outside, and what is wider than the window."""
    with started(path) as browser:
        for page in pages:
            name = page.relative_to(folder)
            for width in WIDTHS:
                browser.resize(width)
                if width == WIDTHS[0]:
                    browser.open(page.resolve().as_uri())
                for words in browser.evaluate(_PROBLEMS):
                    yield f"{name} at {width} px: {words}"
            yield from (f"{name}: {words}" for words in complaints(browser.events))
