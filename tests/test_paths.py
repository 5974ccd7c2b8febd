"""Names that no file can have, folders that cannot be written, disks that are full: our errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest

import attendre_core as at
from attendre_core.cli import main
from attendre_core.errors import ConfigError, StateError
from attendre_core.evaluation import load_tiny
from attendre_core.evaluation.sweep import Cell, ResultStore
from attendre_core.paths import user_path

linux = pytest.mark.skipif(sys.platform != "linux", reason="uses files of Linux")
NAMES = {
    "long": "x" * 300,
    "deep": "a/" * 3000 + "b",
    "of nobody": "~nobody-of-this-name/x",
    "empty": "",
}
#: Commands by what they do with a name.
READS = {
    "run": ["run", "{}", "--model", "{}"],
    "chat": ["chat", "--model", "{}"],
    "tag": ["tag", "text", "--model", "{}"],
    "embed": ["embed", "text", "--model", "{}", "--out", "vectors.jsonl"],
    "eval": ["eval", "needle", "--model", "{}", "--out", "results"],
    "trace": ["trace", "--model", "{}", "--prompt", "text"],
    "trace a text": ["trace", "--model", "none", "--text", "{}"],
    "bench": ["bench", "--from", "{}"],
    "tag a text": ["tag", "{}", "--model", "none"],
    "run a text": ["run", "{}", "--model", "none"],
    "run a state": ["run", "text", "--model", "none", "--restore", "{}"],
    "chat about a text": ["chat", "--model", "none", "--file", "{}"],
}
WRITES = {
    "demo": ["demo", "--documents", "1", "--policies", "MT", "--picture", "{}"],
    "eval": ["eval", "synthetic", "--model", "prefix-lm", "--limit", "1", "--out", "{}"],
    "trace": ["trace", "--policies", "MT", "--out", "{}"],
}
#: Names of results are looked at before the model is.
WRITES_LATER = {
    "embed": ["embed", "text", "--model", "none", "--out", "{}"],
    "tag": ["tag", "text", "--model", "none", "--out", "{}"],
    "run": ["run", "text", "--model", "none", "--save", "{}"],
    "bench": ["bench", "--from", "none", "--save", "{}"],
    "bench a page": ["bench", "--from", "none", "--page", "{}"],
}


def refused(words, capsys):
    assert main(words) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("attendre: error: ")
    assert shown.count("\n") == 1
    return shown


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("command", READS)
def test_names_to_read(command, name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("text")
    told = refused([word.format(name) for word in READS[command]], capsys)
    assert re.search("too long|no user of|is empty", told)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("words", [*WRITES.values(), *WRITES_LATER.values()], ids=" ".join)
def test_names_to_write(words, name, capsys, tmp_path, monkeypatch):
    """An empty name, as of a variable that is not set, must not throw results away."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("text")
    told = refused([word.format(name) for word in words], capsys)
    assert re.search("too long|no user of|is empty", told)


@pytest.mark.parametrize("command", WRITES)
def test_a_file_in_the_place_of_a_folder(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    refused([word.format("file/below") for word in WRITES[command]], capsys)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
@pytest.mark.parametrize("command", WRITES)
def test_folders_that_are_read_only(command, capsys, tmp_path):
    tmp_path.chmod(0o500)
    refused([word.format(tmp_path / "below") for word in WRITES[command]], capsys)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_in_python(name, tmp_path):
    with pytest.raises(ConfigError, match="too long|no user|is empty"):
        at.load(name)
    stream = load_tiny("prefix-lm", memory="attendre:32").stream()
    stream.feed([3, 4, 5])
    store = at.Store.build(search=np.eye(3), key=np.eye(3)[:, None], value=np.eye(3)[:, None])
    for save in (stream.save, store.save):
        with pytest.raises((StateError, ConfigError)):
            save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_character_that_no_name_has():
    with pytest.raises(ConfigError, match="such a character"):
        user_path("a\0b")


PIPE = """
import sys
from pathlib import Path
import attendre_core as at
from attendre_core.cli.tag_file import SpanFile
from attendre_core.errors import StateError
from attendre_core.evaluation import load_tiny
from attendre_core.evaluation.sweep import ResultStore, read_results

model, pipe = load_tiny("prefix-lm", memory="attendre:32"), Path(sys.argv[1])
for call in (model.restore, at.Store.open, at.HostStore.load, read_results,
             lambda pipe: ResultStore(pipe, {}), lambda pipe: SpanFile(pipe, {})):
    try:
        call(pipe)
    except StateError as error:
        assert "is no file" in str(error), error
    else:
        raise AssertionError("it was read")
"""


@linux
def test_pipes_are_not_waited_for(tmp_path):
    """In a process of its own, because a call that waits cannot be interrupted."""
    pytest.importorskip("safetensors")
    os.mkfifo(tmp_path / "pipe")
    result = subprocess.run(
        [sys.executable, "-c", PIPE, str(tmp_path / "pipe")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr


FULL = """
import os, resource, sys
from pathlib import Path
import numpy as np
import attendre_core as at
from attendre_core.errors import StateError
from attendre_core.cli import main
from attendre_core.cli.tag_file import SpanFile
from attendre_core.evaluation import load_tiny
from attendre_core.evaluation.sweep import Cell, ResultStore

os.chdir(sys.argv[1])
stream = load_tiny("prefix-lm", memory="attendre:32").stream()
stream.feed([3, 4, 5])
rows = np.ones((4096, 1, 4), np.float32)
store = at.Store.build(search=rows[:, 0], key=rows, value=rows)
host = at.HostStore(capacity=1000)
memory = at.Tiers(at.KeyValueMemory(8), at.HostTier(host, top_k=4))
state = memory.init(batch=1, heads=1, head_dim=4)
for _ in range(100):
    state, _ = memory.insert(state, *2 * [np.ones((1, 8, 1, 4), np.float32)])
    state, _ = memory.attend(state, np.ones((1, 8, 1, 4), np.float32))
results = ResultStore(Path("results.jsonl"), {"task": "made-up"})
results.append(Cell("MT", 16, 0), [("a", {"score": 1.0})])
for name in ("stream", "store", "host"):
    Path(name).write_text("what was there before")
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))  # no file may grow beyond

def refused(call):
    try:
        call()
    except StateError as error:
        assert "cannot be written" in str(error), error
    else:
        raise AssertionError("it was written")

refused(lambda: stream.save("stream"))
refused(lambda: store.save("store"))
refused(lambda: host.save("host"))
refused(lambda: results.append(Cell("MT", 16, 0), [(str(n), {"score": 1.0}) for n in range(999)]))
results.append(Cell("MT", 16, 0), [("b", {"score": 1.0})])  # there is room for one
spans = SpanFile(Path("spans"), {"model": "made-up"})
def tag():
    with spans, spans.tagging("results.jsonl") as write:
        for _ in range(9999):
            write("{}")
refused(tag)
assert main(["trace", "--policies", "MT", "--out", "trace"]) == 2
for name in ("stream", "store", "host"):
    assert Path(name).read_text() == "what was there before"
assert not list(Path().rglob("*.part"))
"""


@linux
def test_a_full_disk(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    with ResultStore(tmp_path / "results.jsonl", {"task": "made-up"}) as store:
        assert store.done(Cell("MT", 16, 0)) == {"a", "b"}


@linux
@pytest.mark.parametrize("words", [["info"], ["info", "--json"], ["completion", "bash"]])
def test_output_that_cannot_be_written(words):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        result = subprocess.run(
            [sys.executable, "-m", "attendre_core.cli", *words],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert result.returncode == 2
    assert result.stderr == "attendre: error: No space left on device\n"
