"""Damages files on purpose, and checks that only errors of this package come out.

Every trial takes a good file of one format, damages it by a seed, reads it and uses it a little.
It may work, or be refused by an error of ours; another error, a warning-free crash, more than two
gigabytes or more than a minute are failures. Trials run in child processes, so that an abort is
counted too. Run by `nox -s fuzz`; `--only FORMAT --first N --count 1` repeats a trial.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import attendre_core as at
from attendre_core import errors
from attendre_core.presets.systems import NAMES
from attendre_core.zoo import saving
from attendre_core.zoo.architectures import architecture_of
from attendre_core.zoo.config import RawConfig
from attendre_core.zoo.tokenizers import tokenizer_at

OURS = tuple(
    kind
    for kind in (getattr(errors, name) for name in errors.__all__)
    if not issubclass(kind, Warning)
)
MEMORY, SECONDS, BATCH = 2 * 2**30, 60, 250
CONFIG = {
    "model_type": "llama", "vocab_size": 300, "hidden_size": 8, "intermediate_size": 12,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip
BERT = {
    "model_type": "bert", "vocab_size": 300, "hidden_size": 8, "intermediate_size": 12,
    "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64,
    "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
}  # fmt: skip
SYSTEM = "LRA-sum+c=0+wait=4+chunk=4:8"
TEXT = "a memory that forgot: \u00e9\u4e2d 42"
#: What JSON may hold in the place of anything.
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 63, 2**31 - 1, 2**31, -(2**31), 2**63, 2**64, -(2**70),
    10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "a", "\ud800", "\0", "x" * 5000,
    "../../etc/passwd", [], {}, [[]], [1, 2], {"": None}, [[[[[[1]]]]]], "(a+)+$",
)  # fmt: skip


class TookTooLongError(BaseException):
    """A trial that does not end."""


class Harmless(random.Random):
    """For a trial that damages nothing, to see that what is damaged in the others is good."""


# ---------------------------------------------------------------- good files


def tensors_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return random weights for a configuration."""
    from attendre_core.tree import tree_leaves

    rng = np.random.default_rng(0)
    wanted = tree_leaves(architecture_of(RawConfig(config, "made up")).parameters())
    return {
        t.name: (rng.standard_normal(t.shape) * 0.3 + (len(t.shape) == 1)).astype(np.float32)
        for t in wanted
    }


def write_folder(folder: Path, config: dict[str, Any]) -> Path:
    """Write a model of safetensors with a tokenizer and a chat template."""
    import tokenizers
    from safetensors.numpy import save_file

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors_of(config), folder / "model.safetensors")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({x: i for i, x in enumerate(letters)}, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.NFC(), tokenizers.normalizers.Replace("~", "-")]
    )
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.add_special_tokens(["<s>", "</s>"])
    inner.save(str(folder / "tokenizer.json"))
    template = (
        "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    settings = {"chat_template": template, "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 257}))
    return folder


def write_gguf(folder: Path) -> Path:
    """Write a GGUF file with its tokenizer."""
    file = Path(__file__).parent / "zoo" / "writing_gguf.py"
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    writing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writing)
    config = {**CONFIG, "vocab_size": 6, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
    values = {
        "model": "llama", "tokens": ["<s>", "a", "b", "ab", "<0x41>", "c"],
        "scores": [0.0, 0.0, 0.0, 1.0, 0.0, 0.0], "token_type": [3, 1, 1, 1, 6, 1],
        "bos_token_id": 0,
    }  # fmt: skip
    metadata = {f"tokenizer.ggml.{name}": value for name, value in values.items()}
    path: Path = writing.write_model(
        folder / "model.gguf", "llama", config, tensors_of(config), **metadata
    )
    return path


def write_llama2c(folder: Path) -> Path:
    """Write a file of llama2.c, and its tokenizer beside it."""
    texts = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{b:02X}>" for b in range(256)), "a", "b"]
    content = struct.pack("<i", 7)
    for text in texts:
        content += struct.pack("<fi", 0.0, len(text.encode())) + text.encode()
    (folder / "tok.bin").write_bytes(content)
    sizes = (8, 12, 2, 2, 1, len(texts), 16)
    dim, wide, layers, heads, kv_heads, vocabulary, length = sizes
    each = 2 * dim + 2 * dim * dim + 2 * dim * (dim // heads) * kv_heads + 3 * dim * wide
    count = vocabulary * dim + layers * each + dim + length * dim // heads
    numbers = np.random.default_rng(0).standard_normal(count).astype("<f4") * 0.3
    path = folder / "model.bin"
    path.write_bytes(struct.pack("<7i", *sizes) + numbers.tobytes())
    return path


def write_onnx(folder: Path) -> Path:
    """Write a folder whose weights are in an ONNX file."""
    import onnx

    write_folder(folder, BERT)
    initializers = [
        onnx.numpy_helper.from_array(array, name) for name, array in tensors_of(BERT).items()
    ]
    graph = onnx.helper.make_graph([], "made up", [], [], initializer=initializers)
    onnx.save(onnx.helper.make_model(graph), str(folder / "model.onnx"))
    (folder / "model.safetensors").unlink()
    return folder


def write_pickle(folder: Path) -> Path:
    """Write a folder whose weights are in a file of PyTorch."""
    import torch

    write_folder(folder, CONFIG)
    weights = {name: torch.from_numpy(array) for name, array in tensors_of(CONFIG).items()}
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


# ---------------------------------------------------------------- damage


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Change bytes, numbers, lengths and order, mostly where the header is."""
    if isinstance(rng, Harmless):
        return content
    out = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        top = len(out) if rng.random() < 0.3 else min(len(out), 2048)
        place = rng.randrange(max(top, 1))
        kind = rng.randrange(8)
        if kind == 0:
            out[place : place + 1] = bytes([rng.randrange(256)])
        elif kind == 1 and out:
            out[place % len(out)] ^= 1 << rng.randrange(8)
        elif kind == 2:
            number = rng.choice((0, 1, -1, 2**31 - 1, -(2**31), 2**16, 255, 2**24))
            out[place : place + 4] = struct.pack("<i", number)
        elif kind == 3:
            number = rng.choice((0, 1, 2**63 - 1, 2**32, 2**40, 2**64 - 1))
            out[place : place + 8] = struct.pack("<Q", number)
        elif kind == 4:
            del out[place:]
        elif kind == 5:
            del out[place : place + rng.randrange(1, 64)]
        elif kind == 6:
            out[place:place] = out[place : place + rng.randrange(1, 64)]
        else:
            out[place:place] = rng.randbytes(rng.randrange(1, 16))
    return bytes(out)


def odd_json(content: Any, rng: random.Random) -> Any:
    """Replace, leave out, double or rename one part of what JSON holds."""
    value: Any = content
    if isinstance(value, (dict, list)) and value and rng.random() < 0.9:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = rng.choice(keys)
        kind = rng.randrange(10)
        if kind == 0:
            del value[key]
        elif kind == 1 and isinstance(value, dict):
            value[rng.choice(("", "type", str(key) + "x"))] = value[key]
        elif kind == 1 and isinstance(value, list):
            value.insert(int(key), value[key])
        else:
            value[key] = odd_json(value[key], rng)
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and rng.random() < 0.5:
        return value * rng.choice((2, -1, 0, 1000, 10**9)) + rng.choice((0, 1))
    return copy.deepcopy(rng.choice(ODD))  # the next change may go into it


def damage_json(file: Path, rng: random.Random) -> None:
    """Damage a file of JSON: what it says, or its letters."""
    if rng.random() < 0.2 or isinstance(rng, Harmless):
        file.write_bytes(damaged(file.read_bytes(), rng))
        return
    content = json.loads(file.read_text())
    for _ in range(rng.choice((1, 1, 2, 3))):
        content = odd_json(content, rng)
    file.write_text(json.dumps(content))


def damage_stream(file: Path, rng: random.Random) -> None:
    """Damage a saved stream, and often give it a checksum that fits again."""
    if rng.random() < 0.4 or isinstance(rng, Harmless):
        file.write_bytes(damaged(file.read_bytes(), rng))
        return
    from safetensors import safe_open
    from safetensors.numpy import save_file

    with safe_open(str(file), framework="numpy") as opened:
        header = dict(opened.metadata())
        arrays = {name: np.array(opened.get_tensor(name)) for name in opened.keys()}  # noqa: SIM118
    for _ in range(rng.choice((1, 1, 2))):
        if rng.random() < 0.5:
            header["notes"] = json.dumps(odd_json(json.loads(header["notes"]), rng))
        else:
            name = rng.choice(sorted(arrays))
            arrays = odd_arrays(arrays, name, rng)
    if rng.random() < 0.1:
        header["format"] = rng.choice(("attendre-stream-1", "attendre-stream-9", "x", ""))
    header["checksum"] = str(saving._checksum(arrays, header["notes"]))
    save_file(arrays, file, metadata=header)


def odd_arrays(arrays: dict[str, Any], name: str, rng: random.Random) -> dict[str, Any]:
    """Change one array: its numbers, shape, dtype or name, or the rows of all."""
    array = arrays[name]
    kind = rng.randrange(8)
    if kind == 0 and array.size:
        numbers = (0, 1, -1, 2**31 - 1, -(2**31), 5) if array.dtype.kind == "i" else (
            0, 1, -1, np.inf, -np.inf, np.nan, 1e38)  # fmt: skip
        array.reshape(-1)[rng.randrange(array.size)] = rng.choice(numbers)
    elif kind == 1:
        arrays[name] = array[:0] if array.ndim else array
    elif kind == 2:
        arrays[name] = array.reshape(-1)
    elif kind == 3:
        arrays[name] = array.astype(rng.choice((np.float64, np.int64, np.uint8, np.float16)))
    elif kind == 4:
        del arrays[name]
    elif kind == 5:
        arrays[name + "x"] = array
    elif kind == 6:
        arrays[name] = np.zeros((rng.choice((2, 50_000)), *array.shape[1:]), array.dtype)
    else:  # many rows everywhere
        arrays = {n: np.repeat(a, 3, axis=0) if a.ndim else a for n, a in arrays.items()}
    return {n: np.ascontiguousarray(a) for n, a in arrays.items()}


def damage_store(file: Path, rng: random.Random) -> None:
    """Damage a store, and often give its notes a checksum that fits again."""
    content = file.read_bytes()
    if rng.random() < 0.4 or isinstance(rng, Harmless):
        file.write_bytes(damaged(content, rng))
        return
    length = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
    own = header.pop("__metadata__")
    about = json.loads(own["about"])
    for _ in range(rng.choice((1, 1, 2))):
        if rng.random() < 0.3:
            about = odd_json(about, rng)
        elif rng.random() < 0.5:
            header = odd_json(header, rng)
        elif body:
            body = bytearray(damaged(bytes(body), rng))
    with suppress(KeyError, TypeError, AttributeError, ValueError):
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            about["checksums"][name] = zlib.crc32(bytes(body[first:last]))
    text = json.dumps(about)
    own = {**own, "about": text, "about_checksum": str(zlib.crc32(text.encode()))}
    lead = json.dumps({"__metadata__": own, **header} if isinstance(header, dict) else header)
    raw = lead.encode()
    file.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(body))


# ---------------------------------------------------------------- trials


class Trials:
    """Good files in a folder, and what a trial of each format does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        llama = write_folder(root / "llama", CONFIG)
        good = {
            "safetensors": llama, "config": llama, "tokenizer": llama,
            "bert": write_folder(root / "bert", BERT),
        }  # fmt: skip
        for name, package, write in (
            ("gguf", "gguf", write_gguf), ("onnx", "onnx", write_onnx),
            ("pickle", "torch", write_pickle),
        ):  # fmt: skip
            if importlib.util.find_spec(package):
                folder = root / name
                if name == "gguf":
                    folder.mkdir()
                good[name] = write(folder)
        (root / "llama2c").mkdir()
        good["llama2c"] = write_llama2c(root / "llama2c")
        self.good = good
        self.model = at.load(llama, memory=SYSTEM)
        stream = self.model.stream(2)
        stream.feed([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [5, 6, 7]])
        stream.save(root / "stream")
        self.full = at.load(llama)
        stream = self.full.stream()
        stream.feed([1, 2, 3])
        stream.save(root / "full")
        chat = self.model.chat(system="Be brief.")
        chat.send("Who?", 2)
        chat.save(root / "chat")
        entries = np.random.default_rng(0).standard_normal((6, 2, 4)).astype(np.float32)
        at.Store.build(search=np.eye(3), key=entries, value=entries, by=2).save(root / "store")
        store = at.HostStore(capacity=5)
        memory = at.Tiers(at.KeyValueMemory(2), at.HostTier(store, top_k=2))
        state = memory.init(batch=1, heads=2, head_dim=4)
        for number in range(3):
            state, _ = memory.insert(state, entries[None, :2] + number, entries[None, :2])
        store.save(root / "host")
        self.kinds: dict[str, Callable[[Path, random.Random], None]] = {
            name: getattr(self, f"_{name}", self._loaded) for name in good
        }
        self.kinds |= {
            name: getattr(self, f"_{name}") for name in ("stream", "full", "chat", "store", "host")
        }
        self.kinds["name"] = self._name

    def kind_of(self, number: int, only: str | None) -> str:
        """Return the format of a trial."""
        return only or list(self.kinds)[number % len(self.kinds)]

    def run(self, number: int, only: str | None = None) -> None:
        """Run one trial."""
        with tempfile.TemporaryDirectory(dir=self.root) as folder:
            self.kinds[self.kind_of(number, only)](Path(folder), random.Random(number))

    def check(self) -> None:
        """Raise unless everything works that is not damaged."""
        for run in self.kinds.values():
            with tempfile.TemporaryDirectory(dir=self.root) as folder:
                run(Path(folder), Harmless(0))

    def _copied(self, kind: str, folder: Path) -> Path:
        good = self.good[kind]
        if good.is_dir():
            return Path(shutil.copytree(good, folder / "model"))
        for file in good.parent.iterdir():
            shutil.copy(file, folder / file.name)
        return folder / good.name

    def _used(self, path: Path) -> None:
        model = at.load(path)
        if model.architecture.kind == "encoder":
            model.encode([1, 2, 3])
        else:
            model.generate([1, 2, 3], max_new_tokens=2)
        if model.tokenizer is not None:
            model.text(model.tokens(TEXT))

    def _loaded(self, folder: Path, rng: random.Random, kind: str = "") -> None:
        path = self._copied(kind, folder)
        file = path
        if path.is_dir():
            (file,) = (f for f in path.iterdir() if f.suffix in (".safetensors", ".onnx", ".bin"))
        file.write_bytes(damaged(file.read_bytes(), rng))
        self._used(path)

    def _safetensors(self, folder: Path, rng: random.Random) -> None:
        self._loaded(folder, rng, "safetensors")

    def _bert(self, folder: Path, rng: random.Random) -> None:
        path = self._copied("bert", folder)
        damage_json(path / rng.choice(("config.json", "config.json", "tokenizer.json")), rng)
        self._used(path)

    def _gguf(self, folder: Path, rng: random.Random) -> None:
        self._loaded(folder, rng, "gguf")

    def _onnx(self, folder: Path, rng: random.Random) -> None:
        self._loaded(folder, rng, "onnx")

    def _pickle(self, folder: Path, rng: random.Random) -> None:
        self._loaded(folder, rng, "pickle")

    def _llama2c(self, folder: Path, rng: random.Random) -> None:
        path = self._copied("llama2c", folder)
        file = rng.choice((path, path, path.parent / "tok.bin"))
        file.write_bytes(damaged(file.read_bytes(), rng))
        self._used(path)

    def _config(self, folder: Path, rng: random.Random) -> None:
        path = self._copied("config", folder)
        names = ("config.json", "tokenizer_config.json", "generation_config.json")
        damage_json(path / rng.choice(names), rng)
        self._used(path)
        at.load(path, memory=16).chat().send("Who?", 1)

    def _tokenizer(self, folder: Path, rng: random.Random) -> None:
        path = self._copied("tokenizer", folder)
        damage_json(path / "tokenizer.json", rng)
        tokenizer = tokenizer_at(path)
        ids = tokenizer.encode(TEXT)
        tokenizer.encode_with_offsets(TEXT * 20)
        tokenizer.decode([*ids, 0, 1, 299])

    def _restored(self, file: str, folder: Path, rng: random.Random, model: Any) -> None:
        path = Path(shutil.copy(self.root / file, folder / file))
        damage_stream(path, rng)
        stream = model.restore(path)
        stream.feed([[3, 4]] * stream.batch)
        stream.generate(2)

    def _stream(self, folder: Path, rng: random.Random) -> None:
        self._restored("stream", folder, rng, self.model)

    def _full(self, folder: Path, rng: random.Random) -> None:
        self._restored("full", folder, rng, self.full)

    def _chat(self, folder: Path, rng: random.Random) -> None:
        path = Path(shutil.copy(self.root / "chat", folder / "chat"))
        damage_stream(path, rng)
        self.model.restore_chat(path).send("And?", 1)

    def _store(self, folder: Path, rng: random.Random) -> None:
        path = Path(shutil.copy(self.root / "store", folder / "store"))
        damage_store(path, rng)
        store = at.Store.open(path)
        store.beside(np.ones((1, store._arrays["search"].shape[1]), np.float32), 1)

    def _host(self, folder: Path, rng: random.Random) -> None:
        path = Path(shutil.copy(self.root / "host", folder / "host"))
        damage_store(path, rng)
        store = at.HostStore.load(path)
        heads, dim = store._arrays["key"].shape[1::2]
        query = np.ones((len(store.clock), 1, heads, dim), np.float32)
        store.search(query, np.ones(query.shape[:2], dtype=bool), 1)

    def _name(self, folder: Path, rng: random.Random) -> None:
        words = (
            "c", "softmax", "hold", "visible", "chunk", "wait", "half", "sinks", "top_k", "0", "-1",
            "1e400", "nan", "9" * 20, "\u0660", "", "+", ":", "=", " ",
        )  # fmt: skip
        text = rng.choice(NAMES)
        for _ in range(0 if isinstance(rng, Harmless) else rng.randrange(4)):
            text += rng.choice("+=:, ") + rng.choice(words)
        text += rng.choice(("", ":64")) if text.count(":") else ":64"
        if rng.random() < 0.5:
            text = damaged(text.encode(), rng).decode("latin-1")[:200]
        config = at.preset(text)
        config.nbytes(layers=1, kv_heads=1, head_dim=4, dtype="float32", heads=1, carry_dim=4)


# ---------------------------------------------------------------- running


def stopped(*_: Any) -> None:
    """Say that a trial takes too long."""
    raise TookTooLongError


def outcome(trials: Trials, number: int, only: str | None) -> tuple[str, str]:
    """Run a trial; return its format and what came of it."""
    kind = trials.kind_of(number, only)
    signal.alarm(SECONDS)
    try:
        trials.run(number, only)
    except OURS:
        return kind, "refused"
    except TookTooLongError:
        return kind, f"FAILED: longer than {SECONDS} seconds"
    except BaseException as error:  # a panic of compiled code is no Exception
        import traceback

        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        return kind, f"FAILED: {type(error).__name__} at {place}: {str(error)[:150]}"
    finally:
        signal.alarm(0)
    return kind, "worked"


def child(trials: Trials, numbers: range, only: str | None, told: int) -> None:
    """Run trials and write a line for the beginning and the end of each."""
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, stopped)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    for number in numbers:
        os.write(told, f"{number}\n".encode())
        kind, result = outcome(trials, number, only)
        os.write(told, json.dumps([number, kind, result]).encode() + b"\n")


def fuzz(first: int, count: int, only: str | None = None, log: Any = None) -> tuple[Counter, list]:  # type: ignore[type-arg]
    """Run trials; return how many had each outcome by format, and the failures."""
    warnings.simplefilter("ignore")
    counts: Counter[tuple[str, str]] = Counter()
    failures: list[tuple[int, str, str]] = []
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        trials = Trials(Path(folder))
        trials.check()
        next_one, end = first, first + count
        while next_one < end:
            numbers = range(next_one, min(next_one + BATCH, end))
            read, write = os.pipe()
            process = os.fork()
            if process == 0:
                status = 1
                try:
                    os.close(read)
                    child(trials, numbers, only, write)
                    status = 0
                finally:
                    os._exit(status)
            os.close(write)
            began = next_one
            with os.fdopen(read) as lines:
                for line in lines:
                    if not line.startswith("["):
                        began = int(line)
                        continue
                    number, kind, result = json.loads(line)
                    next_one = number + 1
                    counts[kind, result.partition(":")[0]] += 1
                    if result.startswith("FAILED"):
                        failures.append((number, kind, result))
            _, status = os.waitpid(process, 0)
            if status:
                kind = trials.kind_of(began, only)
                failures.append((began, kind, f"FAILED: the process died with status {status}"))
                counts[kind, "FAILED"] += 1
                next_one = began + 1
            if log is not None:
                log(f"{next_one - first} of {count}, {len(failures)} failures")
    return counts, failures


def main() -> int:
    """Run from the command line; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="seed of the first trial (0)")
    parser.add_argument("--count", type=int, default=20_000, help="how many trials (20000)")
    parser.add_argument("--only", help="one format alone")
    given = parser.parse_args()
    began = time.time()
    counts, failures = fuzz(
        given.first, given.count, given.only, lambda told: print(told, flush=True)
    )
    results = ("worked", "refused", "FAILED")
    print(f"{'format':<14}" + "".join(f"{result:>9}" for result in results))
    for kind in sorted({kind for kind, _ in counts}):
        print(f"{kind:<14}" + "".join(f"{counts[kind, result]:>9}" for result in results))
    for number, kind, result in failures[:50]:
        print(f"--only {kind} --first {number} --count 1: {result}")
    print(f"{sum(counts.values())} trials, {len(failures)} failures, {time.time() - began:.0f} s")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
