"""Save a stream, die, go on: bit for bit on the same backend, token for token on another."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

import attendre_core as at
from attendre_core.zoo import saving

safetensors = pytest.importorskip("safetensors")
numpy_files = pytest.importorskip("safetensors.numpy")

MEMORIES = {
    "none": "None",
    "scores": "at.preset('LFA-1e-3', kv_size=24, chunk=8)",
    "waiting": "at.preset('LRA-max', kv_size=24, q_size=10, chunk=8, top_k=12)",
}
#: Two rows of different lengths; neither length fills its last chunk.
FIRST = [np.random.default_rng(1).integers(0, 256, size=n).tolist() for n in (45, 21)]
SECOND = [np.random.default_rng(2).integers(0, 256, size=n).tolist() for n in (14, 30)]

KILLED = """
import os, signal, sys
import attendre_core as at

folder, library, target, memories, tokens = sys.argv[1], sys.argv[2], sys.argv[3], *map(
    eval, sys.argv[4:]
)
for name, memory in memories.items():
    stream = at.load(folder, memory=eval(memory), backend=library).stream(len(tokens))
    stream.feed(tokens)
    stream.save(f"{target}/{name}.safetensors")
os.kill(os.getpid(), signal.SIGKILL)
"""


def loaded(folder, name, library, **options):
    return at.load(folder, memory=eval(MEMORIES[name]), backend=library, **options)


def bits(stream):
    """All arrays of a stream, and everything else that it remembers."""
    to_numpy = stream.model.backend.to_numpy
    arrays = {
        name: np.asarray(to_numpy(a)).tobytes() for name, a in saving.named_leaves(stream._arrays)
    }
    return arrays, stream._read.tolist(), stream._last_at.tolist(), stream._pending


@pytest.mark.thorough("jax")
def test_killed_and_restored_goes_on_bit_for_bit(tiny_folder, library, tmp_path):
    program = [sys.executable, "-c", KILLED, str(tiny_folder), library, str(tmp_path)]
    # JAX compiles for longer than it runs, so it gets only the memory with everything in it.
    memories = {"waiting": MEMORIES["waiting"]} if library == "jax" else MEMORIES
    ended = subprocess.run([*program, repr(memories), repr(FIRST)], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    for name in memories:
        model = loaded(tiny_folder, name, library)
        uninterrupted = model.stream(2)
        uninterrupted.feed(FIRST)
        restored = model.restore(tmp_path / f"{name}.safetensors")
        assert restored.lengths == (45, 21)
        assert restored._pending == uninterrupted._pending
        for stream in (uninterrupted, restored):
            stream.feed(SECOND)
        assert bits(restored) == bits(uninterrupted)
        assert restored.generate(6) == uninterrupted.generate(6)
        logits = [
            np.asarray(model.backend.to_numpy(s.next_logits())) for s in (restored, uninterrupted)
        ]
        assert logits[0].tobytes() == logits[1].tobytes()


@pytest.mark.parametrize("name", MEMORIES)
def test_another_backend_goes_on_with_the_same_tokens(tiny_folder, name, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    file = tmp_path / "state.safetensors"
    alone = loaded(tiny_folder, name, "numpy").stream(2)
    alone.feed(FIRST)
    alone.save(file)
    parts = [[row[:9] for row in SECOND], [row[9:] for row in SECOND]]
    for library, part in zip(("torch", "jax"), parts, strict=True):
        stream = loaded(tiny_folder, name, library).restore(file)
        stream.feed(part)
        stream.save(file)
        alone.feed(part)
    last = loaded(tiny_folder, name, "numpy").restore(file)
    assert last.generate(8) == stream.generate(8) == alone.generate(8)
    assert last.lengths == alone.lengths


def test_a_stream_that_wrote_is_saved_as_it_goes_on(tiny_folder, tmp_path):
    """Generating makes room in a memory without limit; the file must have the same room."""
    model = at.load(tiny_folder)
    stream = model.stream()
    stream.feed(FIRST[0])
    stream.generate(600)
    stream.save(tmp_path / "state")
    restored = model.restore(tmp_path / "state")
    for one in (stream, restored):
        one.feed(SECOND[0] * 20)
    assert bits(stream) == bits(restored)


@pytest.mark.parametrize(
    "kind", [pytest.param("float16", marks=pytest.mark.thorough("jax")), "bfloat16"]
)
def test_narrow_numbers_survive(tiny_folder, library, kind, tmp_path):
    if library == "numpy" and kind == "bfloat16":
        pytest.skip("NumPy has no bfloat16")
    model = loaded(tiny_folder, "waiting", library, dtype=kind)
    stream = model.stream(2)
    stream.feed(FIRST)
    stream.save(tmp_path / "state")
    restored = model.restore(tmp_path / "state")
    assert bits(stream) == bits(restored)
    with pytest.raises(at.StateError, match="dtype = "):
        loaded(tiny_folder, "waiting", library).restore(tmp_path / "state")


@pytest.mark.thorough("jax")
def test_the_outputs_of_an_encoder_are_saved_too(made_up, library, tmp_path):
    config = {
        "model_type": "t5", "vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 24,
        "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0, "eos_token_id": 1,
        "tie_word_embeddings": True,
    }  # fmt: skip
    memory = at.preset("LFA-0", kv_size=16, q_size=4, chunk=8)
    model = at.load(made_up(config), memory=memory, backend=library)
    tokens = [[t % 60 for t in row] for row in FIRST]
    stream = model.stream(2)
    stream.feed(tokens)
    stream.save(tmp_path / "state")
    restored = model.restore(tmp_path / "state")
    for one in (stream, restored):
        one.feed([[5, 6, 7], [8]])
    assert bits(stream) == bits(restored)
    assert stream.generate(5) == restored.generate(5)


# ---------------------------------------------------------------- what must be refused


def contents(file):
    with safetensors.safe_open(file, framework="numpy") as opened:
        return opened.metadata(), numpy_files.load_file(file)


@pytest.fixture
def saved(tiny_folder, tmp_path):
    """A model and a file that one of its streams wrote."""
    model = loaded(tiny_folder, "waiting", "numpy")
    stream = model.stream(2)
    stream.feed(FIRST)
    stream.save(tmp_path / "state")
    return model, tmp_path / "state"


def test_damaged_files_are_refused(saved, tmp_path):
    model, file = saved
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    for length in (0, 1, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(at.StateError):
            model.restore(file)
    for place in rng.integers(0, len(whole), size=60).tolist():
        broken = bytearray(whole)
        broken[place] ^= 1 << int(rng.integers(0, 8))
        file.write_bytes(broken)
        with pytest.raises(at.StateError):
            model.restore(file)
    for other in (tmp_path, tmp_path / "missing"):
        with pytest.raises(at.StateError, match="cannot be read"):
            model.restore(other)


def test_a_changed_note_is_refused(saved):
    """Every digit and letter of the notes counts, such as how much was read."""
    model, file = saved
    with safetensors.safe_open(str(file), framework="numpy") as opened:
        header = opened.metadata()
    arrays = numpy_files.load_file(file)
    for place in range(len(header["notes"])):
        if header["notes"][place].isdigit():
            digit = str((int(header["notes"][place]) + 1) % 10)
            notes = header["notes"][:place] + digit + header["notes"][place + 1 :]
            numpy_files.save_file(arrays, file, metadata={**header, "notes": notes})
            with pytest.raises(at.StateError):
                model.restore(file)


def test_other_safetensors_are_refused(saved, tiny_folder):
    model, _ = saved
    with pytest.raises(at.StateError, match="is no saved stream"):
        model.restore(tiny_folder / "model.safetensors")


def test_streams_of_other_models_are_refused(saved, tiny_folder, made_up):
    _, file = saved
    with pytest.raises(at.StateError, match=r"memory\.policy = LRA.*\.top_k = 12 \(here None\)"):
        loaded(tiny_folder, "scores", "numpy").restore(file)
    with pytest.raises(at.StateError, match="attention = "):
        loaded(tiny_folder, "waiting", "numpy", attention="prefix").restore(file)
    config = json.loads((tiny_folder / "config.json").read_text())
    with pytest.raises(at.StateError, match="weights = "):
        loaded(made_up(config), "waiting", "numpy").restore(file)
    with pytest.raises(at.StateError, match=r"model\.activation = .silu. \(here .gelu.\)"):
        loaded(made_up({**config, "hidden_act": "gelu"}), "waiting", "numpy").restore(file)


def test_the_fingerprint_is_the_same_on_every_backend(tiny_folder, library):
    models = [at.load(tiny_folder, backend=b) for b in ("numpy", library)]
    one, two = (saving.fingerprint(m.params, m.backend.to_numpy) for m in models)
    assert one == two


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("read", [1]),
        ("read", [1, -1]),
        ("read", [1, 2**40]),
        ("read", [1, True]),
        ("read", "ab"),
        ("read", None),
        ("read", [45, 2]),
        ("last_at", [0.5, 1]),
        ("last_at", [45, 0]),
        ("pending", [[1]]),
        ("pending", [[1], [256]]),
        ("pending", [[1], [-1]]),
        ("pending", [[1], ["a"]]),
        ("pending", 7),
        ("pending", None),
    ],
)
def test_notes_that_lie_are_refused(saved, name, value):
    model, file = saved

    def change(arrays, notes):
        notes[name] = value
        if value is None:
            del notes[name]

    rewritten(file, change)
    with pytest.raises(at.StateError, match="has|holds"):
        model.restore(file)


@pytest.mark.parametrize("change", ["shape", "rows", "kind", "missing", "more", "no rows"])
def test_arrays_that_do_not_fit_are_refused(saved, change):
    """Even with a checksum that fits: nothing is believed, nothing large is made."""
    model, file = saved
    header, arrays = contents(file)
    key, valid = "states.0.kv.key", "states.1.kv.valid"
    if change == "shape":
        arrays[key] = arrays[key][:, :, :5]
    elif change == "rows":
        arrays["last"] = np.zeros((2**20, 32), np.float32)
    elif change == "kind":
        arrays[valid] = arrays[valid].astype(np.float32)
    elif change == "missing":
        del arrays[valid]
    elif change == "more":
        arrays["states.9"] = np.zeros(1, np.float32)
    else:
        arrays = {name: array[:0] for name, array in arrays.items()}
    header["checksum"] = str(saving._checksum(arrays, header["notes"]))
    numpy_files.save_file(arrays, file, metadata=header)
    with pytest.raises(at.StateError):
        model.restore(file)


def test_a_failed_save_leaves_the_old_file(saved, tmp_path, monkeypatch):
    model, file = saved
    before = file.read_bytes()
    stream = model.stream()
    stream.feed(FIRST[0])

    def fail(where, target, arrays, metadata):
        target.write(before[:50])
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(saving, "write_safetensors", fail)
        with pytest.raises(at.StateError, match="no space left.*unchanged"):
            stream.save(file)
    assert file.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["state"]
    with pytest.raises(at.StateError, match="cannot be written"):
        stream.save(tmp_path / "nowhere" / "state")
    stream.save(file)
    assert model.restore(file).lengths == (45,)


# ---------------------------------------------------------------- what a checksum cannot tell


def rewritten(file, change):
    """Change arrays and notes of a file, and give it a checksum that fits."""
    header, arrays = contents(file)
    notes = json.loads(header["notes"])
    arrays = {name: np.array(array) for name, array in arrays.items()}
    arrays = change(arrays, notes) or arrays
    header["notes"] = json.dumps(notes)
    header["checksum"] = str(saving._checksum(arrays, header["notes"]))
    numpy_files.save_file(arrays, file, metadata=header)


def set_to(name, place, value):
    def change(arrays, notes):
        arrays[name][place] = value

    return change


LIES = {
    "a key is no number": set_to("states.0.kv.key", (0, 0, 0, 0), np.nan),
    "a score is infinite": set_to("states.1.kv.score", (0, 0), np.inf),
    "the last state is no number": set_to("last", (0, 0), -np.inf),
    "a position that was not read": set_to("states.0.kv.position", (1, 0), 21),
    "a position before all": set_to("states.0.kv.position", (0, 0), -(2**31)),
    "a position behind all": set_to("states.0.kv.position", (0, 0), 2**31 - 1),
    "a clock that wrapped": set_to("states.0.kv.clock", 0, -5),
    "a clock that is slow": set_to("states.0.kv.clock", 0, 1),
    "an arrival of the future": set_to("states.1.kv.arrival", (0, 0), 2**30),
    "an arrival twice": lambda arrays, notes: arrays["states.0.kv.arrival"][0].__setitem__(
        slice(0, 2), 3
    ),
    "the queue's clock": set_to("states.0.queue.clock", 1, -1),
}


@pytest.mark.parametrize("lie", LIES)
def test_states_that_cannot_be_are_refused(saved, lie):
    model, file = saved
    rewritten(file, lambda arrays, notes: None)
    assert model.restore(file).lengths == (45, 21)
    rewritten(file, LIES[lie])
    with pytest.raises(at.StateError, match="holds"):
        model.restore(file)


def test_many_rows_are_not_believed(saved, little_memory):
    """Some bytes a row ask for all of a row's memory: checked before it is made."""
    model, file = saved
    rows = 2**17

    def change(arrays, notes):
        return {"last": np.zeros((rows, 32), np.float32),
                "states.0.kv.key": np.zeros((rows, 2, 0, 8), np.float32)} | {
            name: array for name, array in arrays.items() if name not in ("last", "states.0.kv.key")
        }  # fmt: skip

    rewritten(file, change)
    with pytest.raises(at.StateError, match="holds states.0.kv.key with shape"):
        model.restore(file)


def test_no_byte_of_a_header_can_be_changed(saved):
    _, file = saved
    whole = file.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    rng = np.random.default_rng(2)
    for place in rng.choice(8 + len(whole[8 : 8 + length].rstrip()), size=400, replace=False):
        broken = bytearray(whole)
        broken[place] = (broken[place] + int(rng.integers(1, 256))) % 256
        file.write_bytes(broken)
        with pytest.raises(at.StateError):
            saving.read_arrays(file)
    for place in (p for p in range(8, 8 + length) if whole[p] == ord(" ")):
        for sign in b"\t\n\r":
            file.write_bytes(whole[:place] + bytes([sign]) + whole[place + 1 :])
            with pytest.raises(at.StateError):
                saving.read_arrays(file)


def test_a_later_format_says_so(saved):
    model, file = saved
    header, arrays = contents(file)
    numpy_files.save_file(arrays, file, metadata={**header, "format": "attendre-stream-7"})
    with pytest.raises(at.StateError, match="A later version saved it"):
        model.restore(file)


def test_equal_states_give_equal_bytes(saved, tmp_path):
    model, file = saved
    model.restore(file).save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == file.read_bytes()
