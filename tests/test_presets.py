"""Memory names: one grammar, one system for each name."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attendre_core as at
from attendre_core.evaluation import load_tiny
from attendre_core.presets import (
    CONTROL_PRESETS,
    OPTIONS,
    ParsedName,
    canonical,
    memory_for,
    parse,
    recommended,
)
from attendre_core.presets.options import ValueKind
from attendre_core.presets.systems import NAMES
from attendre_core.zoo.memories import shape_of

SHAPE = {"layers": 3, "kv_heads": 2, "head_dim": 8}


# -------------------------------------------------------------------- systems


@pytest.mark.parametrize("name", at.PRESETS)
def test_every_preset_makes_memories(name):
    config = at.preset(name, kv_size=64, q_size=32, chunk=16, top_k=8)
    assert config.kv_memory().size == 64
    assert config.q_memory().size == 32
    assert config == at.preset(name.lower(), kv_size=64, q_size=32, chunk=16, top_k=8)
    assert config == at.preset(f"{name}+wait=32+chunk=16+k=8:64")
    assert hash(config) == hash(at.preset(name, kv_size=64, q_size=32, chunk=16, top_k=8))


def test_names_of_the_paper_are_the_papers_systems():
    def policy(name, **settings):
        return at.preset(name, kv_size=8, **settings).policy

    paper = at.InitialScore(sigmas=1.0)
    assert policy("MT") == at.FIFO()
    assert policy("AS") == at.AttentionSink(sinks=4)
    for pool in ("last", "max", "sum"):
        assert policy(f"LRA-{pool}") == at.LRA(pool, initial=paper)
    assert policy("LFA-5e-4") == at.LFA(decay=5e-4, initial=paper)
    assert policy("LRU") == at.LRU(initial=paper)
    assert policy("LFU") == at.LFU(initial=paper)
    assert policy("LFA-0", sigmas=0.0) == at.LFA(decay=0.0, initial=at.InitialScore(0.0))
    assert policy("LRA-max+c=1.5") == at.LRA("max", initial=at.InitialScore(1.5))
    plain = at.MemoryConfig(at.FIFO(), 8)
    for name in ("MT", "AS", "LRA-last", "LRA-max", "LRA-sum", "LFA-0", "LFA-1e-3", "LRU", "LFU"):
        assert at.preset(name, kv_size=8) == replace(plain, policy=policy(name))


@pytest.mark.parametrize(("size", "chunk"), [(1, 1), (64, 64), (127, 127), (128, 128), (999, 128)])
def test_a_chunk_is_no_longer_than_the_memory_unless_asked_for(size, chunk):
    config = at.preset("attendre-causal", kv_size=size)
    assert config == at.preset(f"attendre-causal:{size}")
    assert config.chunk == at.MemoryConfig(at.FIFO(), size).chunk == chunk
    assert config.name == f"attendre-causal:{size}"
    longer = at.preset("MT", kv_size=size, chunk=size + 1)
    assert longer.chunk == size + 1
    assert at.preset(longer.name) == longer


def test_a_small_memory_reads_without_a_warning(recwarn):
    model = load_tiny("prefix-lm")
    for name in ("attendre", "MT"):
        memory = at.preset(name, kv_size=64)
        model.with_memory(memory).encode(list(range(1, 70)) * 3)
        shape = shape_of(model.reading_part, "float32")
        assert memory.nbytes(**shape) < at.preset(f"{name}+chunk=128:128").nbytes(**shape)
    assert not recwarn.list


def test_systems_of_others_and_our_own():
    def config(policy, **settings):
        return at.MemoryConfig(policy, 64, present="visible", **settings)

    assert at.preset("Transformer-XL:64") == config(at.FIFO())
    assert at.preset("LM-Infinite:64") == config(at.AttentionSink(16))
    assert at.preset("LM-Infinite:4096").policy == at.AttentionSink(100)
    assert at.preset("H2O:64") == config(at.H2O(), per_head=True, protect_recent=32)
    assert at.preset("TOVA:64") == config(at.TOVA())
    vlen = config(at.H2O(value_norm=True), per_head=True, protect_recent=32)
    assert at.preset("H2O-vlen:64") == vlen
    guarded = {"sinks": 4, "protect_recent": 4}
    defensive = at.Defensive(value_norm=True)
    assert at.preset("Defensive:64") == config(defensive, per_head=True, **guarded)
    assert at.preset("SnapKV:64") == config(at.SnapKV(), per_head=True, **guarded)
    assert at.preset("DropKV:64") == config(at.DropKV(), per_head=True, **guarded)
    assert at.preset("ValueNorm:64") == config(at.ValueNorm(), **guarded)
    assert at.preset("SnapKV:4096").protect_recent == 32
    assert at.preset("Unlimiformer:64") == at.MemoryConfig(at.FIFO(), 64, cross_top_k=64)
    assert at.preset("Unlimiformer+k=8:64") == at.MemoryConfig(at.FIFO(), 64, cross_top_k=8)
    both_ways = at.LFA(decay=0.0, initial=at.InitialScore(-1.0), score="softmax")
    assert at.preset("attendre:64") == config(both_ways, q_size=32, adapt=True)
    guarded = {"sinks": 4, "protect_recent": 16, "per_head": True}
    assert at.preset("attendre-causal:64") == config(at.Salience(), adapt=True, **guarded)
    each = {"per_head": True}
    assert at.preset("Knorm:64") == config(at.Knorm(), **each)
    assert at.preset("KeyDiff:64") == config(at.KeyDiff(), **each)
    assert at.preset("LagKV:64") == config(at.LagKV(lag=16), sinks=16, **each)
    assert at.preset("LagKV:4096").policy == at.LagKV(lag=128)
    assert at.preset("R-KV:64") == config(at.RKV(), protect_recent=8, **each)
    assert at.preset("Leverage:64") == config(at.Leverage(), sinks=8, protect_recent=4, **each)
    assert at.preset("ExpectedAttention:64") == config(at.ExpectedAttention(), sinks=4, **each)
    assert at.preset("TRAMS:64") == config(at.TRAMS(), **each)
    assert at.preset("Nexus+seed=3:64") == config(at.Nexus(seed=3))
    assert at.preset("first-M:64") == at.MemoryConfig(at.FIFO(), 64, sinks=64)
    assert at.preset("random+seed=3:64").policy == at.Random(seed=3)


def test_only_our_own_waits():
    sizes = {name: at.preset(name, kv_size=64).q_size for name in NAMES}
    assert {name for name, size in sizes.items() if size} == {"attendre"}
    assert sizes["attendre"] == 32
    assert at.preset("attendre", kv_size=64, q_size=0).q_size == 0
    assert at.preset("LRA-sum+wait=half:65").q_size == 32


def test_layers_may_have_their_own_policies():
    config = at.preset("LFA-0", kv_size=8).with_layer_policies({2: at.FIFO(), 0: at.LRU()})
    assert [type(config.policy_of(i)).__name__ for i in range(4)] == ["LRU", "LFA", "FIFO", "LFA"]
    assert config.name == "LFA-0+layer0=LRU(initial=InitialScore(sigmas=1.0))+layer2=FIFO():8"
    with pytest.raises(at.ConfigError, match="5 sinks"):
        at.preset("MT:4").with_layer_policies({1: at.AttentionSink(5)})


def test_what_is_protected_reaches_the_memory():
    config = at.preset("LRA-sum+sinks=2+recent=3+pin=0-4+pin=9-12+per-head:64")
    memory = config.kv_memory(1)
    assert (memory.sinks, memory.protect_recent, memory.per_head) == (2, 3, True)
    assert memory.pin == ((0, 4), (9, 12))
    assert config.name == "LRA-sum+per-head+sinks=2+recent=3+pin=0-4+pin=9-12:64"


def read(name, count=24, chunk=4):
    """Return the positions that a memory of 8 entries holds after reading noise."""
    memory = at.preset(name, kv_size=8, chunk=chunk).kv_memory()
    state = memory.init(batch=1, heads=1, head_dim=2, chunk=chunk)
    noise = np.random.default_rng(0).normal(size=(3, 1, count, 1, 2)).astype(np.float32)
    for start in range(0, count, chunk):
        query, key, value = noise[:, :, start : start + chunk]
        state, _ = memory.insert(state, key, value)
        state, _ = memory.attend(state, query, causal=True)
    return memory, state, sorted(state.position[state.valid].tolist())


def test_names_do_what_they_say():
    assert read("MT")[2] == list(range(16, 24))
    assert read("AS")[2] == [0, 1, 2, 3, 20, 21, 22, 23]
    assert read("MT+sinks=4")[2] == read("AS")[2]
    assert read("first-M")[2] == list(range(8))
    assert read("MT+pin=3-5")[2] == [3, 4, *range(18, 24)]
    assert read("random+recent=2")[2][-2:] == [22, 23]
    assert read("random")[2] != read("random+seed=1")[2]
    assert read("Transformer-XL")[2] == list(range(12, 24))
    assert {0, 1} < set(read("LRA-sum+sinks=2+c=-9")[2])


def test_a_frozen_memory_is_told_what_to_use():
    memory, state, _ = read("LFA-0+c=50", count=64)
    with pytest.warns(at.FrozenMemoryWarning, match=r"'attendre-causal' .* 'attendre' .*\+c=0"):
        memory.report(state)


# -------------------------------------------------------------------- canonical names


@st.composite
def option_texts(draw, option):
    if not isinstance(option.value, ValueKind):
        return option.usage
    word = option.word
    if word == "c":
        number = draw(st.floats(-1e9, 1e9))
        return f"c={draw(st.sampled_from([repr(number), f'{number:g}']))}"
    if word in ("quota", "quantile"):
        return f"{word}={draw(st.floats(0, 1))!r}"
    if word == "pin":
        start = draw(st.integers(0, 50))
        return f"pin={start}-{start + draw(st.integers(1, 50))}"
    number = str(draw(st.integers(1, 9)))
    words = {"wait": ["half"], "k": ["all"], "cross": ["all"]}.get(word, [])
    return f"{word}={draw(st.sampled_from([number, *words]))}"


@st.composite
def names(draw):
    """Draw a name, options in any order and any capitals, and a size."""
    decays = st.floats(0, 1e3).map(lambda decay: f"LFA-{decay!r}")
    name = draw(st.one_of(st.sampled_from(NAMES), decays))
    texts = {}
    for option in draw(st.lists(st.sampled_from(OPTIONS), max_size=5)):
        texts[option.field] = draw(option_texts(option))
    spelled = "+".join([name, *draw(st.permutations(list(texts.values())))])
    size = draw(st.integers(1, 400))
    return f"{draw(st.sampled_from([spelled, spelled.lower(), spelled.upper()]))}:{size}"


@settings(deadline=None)
@given(names())
def test_a_canonical_name_makes_an_equal_system(text):
    try:
        config = at.preset(text)
    except at.ConfigError:
        return
    assert at.preset(config.name) == config
    assert at.preset(config.name).name == config.name
    assert at.preset(config.name.lower()) == config
    assert str(parse(config.name)) == config.name
    assert at.preset(str(parse(text))) == config


@given(names(), names())
def test_equal_names_mean_equal_systems(one, other):
    try:
        first, second = at.preset(one), at.preset(other)
    except at.ConfigError:
        return
    assert (first.name == second.name) == (first == second)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.word)
def test_every_option_changes_something_and_is_named(option):
    """No option is dead: some system differs with it, and its canonical name shows it."""
    value = {
        "NUMBER": "0.5",
        "SHARE": "0.5",
        "START-STOP": "2-5",
        "INT": "7",
        "COUNT": "3",
        "SIZES": "3/5",
    }
    word, equals, kind = option.usage.partition("=")
    text = f"{word}={value[kind]}" if equals else word
    opposite = {"logits": "attendre", "compete": "TOVA", "per-token": "H2O", "fixed": "attendre"}
    usual = {"clamp": "positions", "drain": "finish", "separate": "decode"}
    name = opposite.get(word, {"seed": "random", "window": "SnapKV"}.get(word, "LFA-0"))
    config = at.preset(f"{name}+{text}:64")
    if word in usual:
        assert config == at.preset(f"{name}:64")
        assert getattr(config, usual[word]) == word
    else:
        assert config != at.preset(f"{name}:64")
        assert (f"+{text}" in config.name) == (word != "logits"), "logits are the paper's"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("lra-SUM+C=0.0+SoftMax:64", "LRA-sum+softmax+c=0:64"),
        ("LFA-0.001+wait=16:64", "LFA-1e-3+wait=16:64"),
        ("LFA-5E-4:64", "LFA-5e-4:64"),
        ("LFA-0.5:64", "LFA-0.5:64"),
        ("LFA-1e+3:64", "LFA-1000:64"),
        ("LRA-sum+c=1+logits+compete+wait=0:64", "LRA-sum:64"),
        ("LRA-sum+c=-0.0:64", "LRA-sum+c=0:64"),
        (
            "LFA-3e-3+per-head+visible+start=0+softmax+recent=half+sinks=4:64",
            "LFA-3e-3+softmax+start=0+visible+per-head+sinks=4+recent=32:64",
        ),
        ("attendre-causal+sinks=4+recent=16:64", "attendre-causal:64"),
        ("LFA-0+softmax+c=-1+visible+wait=32+fixed:64", "attendre+fixed:64"),
        ("attendre+c=-4:64", "LFA-0+softmax+c=-4+visible+wait=32:64"),
        ("LFA-0+softmax+c=-1+visible+wait=32:64", "attendre:64"),
        ("attendre+wait=0:64", "attendre+wait=0:64"),
        ("attendre+k=8:64", "attendre+k=8:64"),
        ("attendre+c=0:64", "LFA-0+softmax+c=0+visible+wait=32:64"),
        ("attendre+compete+wait=0:64", "LFA-0+softmax+c=-1:64"),
        ("TOVA+compete:64", "TOVA+compete:64"),
        ("LRA-mean+c=0:64", "LRA-mean+c=0:64"),
        ("MT+visible:64", "Transformer-XL:64"),
        ("MT+sinks=64:64", "first-M:64"),
        ("AS+sinks=8:64", "AS+sinks=8:64"),
        ("H2O+recent=0:64", "H2O+recent=0:64"),
        ("h2o-VLEN+recent=32:64", "H2O-vlen:64"),
        ("snapkv+window=all+c=0:64", "SnapKV+window=all:64"),
        ("DropKV+window=8+per-token:64", "DropKV+window=8+per-token:64"),
        ("Defensive+sinks=0:64", "Defensive+sinks=0:64"),
        (" mt : 64 ", "MT:64"),
    ],
)
def test_spellings(text, name):
    assert at.preset(text).name == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *((name, name) for name in NAMES),
        ("LRA-SUM+c=1+k=128", "LRA-sum+k=128"),
        ("lfa-0+visible+c=-1+softmax+wait=half:64", "attendre"),
        ("LFA-0+wait=half+c=1", "LFA-0+wait=half"),
        ("attendre+wait=half", "attendre"),
        ("attendre+wait=195", "attendre+wait=195"),
        ("AS+sinks=100+visible", "AS+visible+sinks=100"),
        ("MT+k=1000+c=0", None),
        ("LRU+c=1+k=1000", "LRU+c=1+k=1000"),
        ("FULL", "full"),
    ],
)
def test_spellings_for_a_table_of_several_sizes(text, name):
    if name is None:
        with pytest.raises(at.ConfigError, match="does not apply to FIFO"):
            canonical(text)
        return
    assert canonical(text, others=["full"]) == name
    if name != "full":
        assert at.preset(name, 2048) == at.preset(str(parse(text)._replace(size=None)), 2048)


def test_names_of_what_only_python_can_say():
    odd = at.MemoryConfig(at.LFA(heads="max"), 64, q_size=8, sinks=2, chunk=16)
    assert odd.name.startswith("LFA(decay=0.001, ")
    assert odd.name.endswith("+sinks=2+wait=8+chunk=16:64")
    assert odd.name != replace(odd, policy=at.LFA(heads="mean")).name
    with pytest.raises(at.ConfigError, match=r"at\.MemoryConfig\(policy, kv_size\)"):
        at.preset(odd.name)


def test_parts_of_a_name():
    parsed = parse("lra-sum+C=0.0+softmax:64 mib")
    assert parsed == ParsedName("LRA-sum", ("softmax", "c=0"), "64MiB")
    assert parsed.has("c")
    assert not parsed.has("wait")
    assert str(parsed) == "LRA-sum+softmax+c=0:64MiB"
    assert parse("FULL", others=["full"]) == ParsedName("full", (), None)
    assert str(parse("random:7")) == "random:7"
    assert set(CONTROL_PRESETS).isdisjoint(at.PRESETS)


# -------------------------------------------------------------------- a policy of one's own


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "own_policies.py").write_text(
        textwrap.dedent(
            """
            from dataclasses import dataclass
            import attendre_core as at

            @dataclass(frozen=True)
            class Mine(at.Policy):
                score: str = "logits"

            @dataclass(frozen=True)
            class Needs(at.Policy):
                amount: int

            class Fails(at.Policy):
                def __init__(self):
                    raise RuntimeError("no disk")

            class NoPolicy:
                pass
            """
        )
    )
    (tmp_path / "broken_policies.py").write_text("import own_policies\n1 / 0\n")
    (tmp_path / "lacking_policies.py").write_text("import no_such_module_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("own_policies", "broken_policies", "lacking_policies"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("module")
def test_a_policy_by_its_module():
    config = at.preset("own_policies:Mine+softmax+wait=8:64")
    from own_policies import Mine

    assert config == at.MemoryConfig(Mine("softmax"), 64, q_size=8)
    assert config.name == "own_policies:Mine+softmax+wait=8:64"
    assert at.preset(config.name) == config
    assert at.preset("own_policies:Mine", 64) == at.preset("own_policies:Mine:64")
    assert memory_for("own_policies:Mine:8KiB", causal=True, **SHAPE).policy == Mine()


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such:Mine:8", "there is no module no_such. It has to be importable"),
        ("own_policies.sub:Mine:8", "there is no module own_policies.sub"),
        ("own_policies:mine:8", "has no mine. Check the spelling; case matters here"),
        ("own_policies:NoPolicy:8", "expected a subclass of at.Policy"),
        ("own_policies:at:8", "expected a subclass of at.Policy"),
        ("own_policies:Needs:8", r"Needs\(\) failed with TypeError.*needs a default"),
        ("own_policies:Fails:8", r"Fails\(\) failed with RuntimeError: no disk"),
        ("broken_policies:Mine:8", "importing broken_policies failed with ZeroDivisionError"),
        ("lacking_policies:Mine:8", "failed with ModuleNotFoundError.*no_such_module_at_all"),
        ("own_policies:Mine+hold:8", r"\+hold does not apply to Mine, which has no 'hold'"),
        ("own_policies:Mine", "the size is missing, expected 'own_policies:Mine:1024'"),
        ("own-policies:Mine:8", "'own-policies:Mine' is not known"),
    ],
)
def test_a_policy_that_cannot_be_made(text, message):
    with pytest.raises(at.ConfigError, match=message):
        at.preset(text)


# -------------------------------------------------------------------- mistakes


@pytest.mark.parametrize("name", ["", "LFA", "LFA-", "LFA-x", "lra-mode", "LFA-1.2.3", "MT+2"])
def test_unknown_names_are_told_with_the_known_ones(name):
    with pytest.raises(at.ConfigError, match=r"is not known.*LRA-last.*LFA-<decay>.*my_module"):
        at.preset(name, kv_size=8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("LRA-smu:8", "Did you mean LRA-sum?"),
        ("LRA-sum", "the size is missing, expected 'LRA-sum:1024' or kv_size=1024"),
        ("MT:8:8", "'MT:8' is not known"),
        ("MT:many", "the size is 'many', expected entries per layer such as :1024, or bytes"),
        ("LFA-0:many", "the size is 'many'"),
        ("MT:4k", "the size is '4k'"),
        ("MT:", "the size is ''"),
        ("MT:" + "9" * 5000, "the size is"),
        ("MT+k=" + "9" * 5000 + ":8", "expected a whole number"),
        ("MT:8+visible", "Options come before the size"),
        ("MT:64MiB", r"depends on the model. Use at.load\(path, memory='MT:64MiB'\)"),
        ("MT+dance:8", "the option 'dance' is not known. Options are softmax, logits"),
        ("MT+:8", "the option '' is not known"),
        ("LRA-sum+c:8", r"the option 'c' is not known; write \+c=NUMBER"),
        ("MT+visible=1:8", r"the option 'visible=1' is not known; write \+visible"),
        ("LRA-sum+c=low:8", r"c is 'low', expected a finite number, as in \+c=NUMBER"),
        ("LRA-sum+c=nan:8", "c is 'nan', expected a finite number"),
        ("LRA-sum+quota=2:8", "quota is '2', expected a share from 0 to 1"),
        ("LRA-sum+quantile=-1:8", "quantile is '-1', expected a share from 0 to 1"),
        ("MT+k=0:8", "k is '0', expected a whole number, 1 or more, or 'all'"),
        ("MT+wait=1.5:8", "wait is '1.5', expected a whole number, 0 or more, or 'half'"),
        ("MT+pin=4-4:8", "pin is '4-4', expected START-STOP with START < STOP"),
        ("LRA-sum+softmax+clip:8", r"\+softmax and \+clip set the same thing"),
        ("LRA-sum+c=0+c=0:8", r"\+c=0 and \+c=0 set the same thing"),
        ("LRA-sum+c=0+quota=1:8", r"\+c=0 and \+quota=1 set the same thing"),
        ("MT+softmax:8", r"\+softmax does not apply to FIFO, which has no 'score'; LRA, LFA do"),
        ("LRU+hold:8", r"\+hold does not apply to LRU"),
        ("AS+c=0:8", r"\+c=0 does not apply to AttentionSink"),
        ("LRA-sum+seed=1:8", r"\+seed=1 does not apply to LRA"),
        ("LRA-sum+wait=8:8", "expected q_size < kv_size.*'attendre' uses.*'attendre-causal'"),
        ("MT+k=9:8", "top_k is 9, but the memory has 8 slots"),
        ("AS:2", "4 sinks and 0 protected recent entries do not fit into size 2"),
        ("MT:0", "kv_size is 0"),
    ],
)
def test_every_mistake_is_told(text, message):
    with pytest.raises(at.ConfigError, match=message):
        at.preset(text)


@pytest.mark.parametrize("name", [at.LFA(), None, 7, ["MT"]])
def test_names_are_text(name):
    with pytest.raises(at.ConfigError, match=r"A policy goes into at\.MemoryConfig"):
        at.preset(name, kv_size=8)


@given(st.text(max_size=40), st.sampled_from(["", "MT:", "LRA-sum+", "LRA-sum+c=", "MT+pin="]))
def test_any_text_is_a_name_or_told(text, start):
    try:
        config = at.preset(start + text, 64 if start != "MT:" else None)
    except at.ConfigError:
        return
    assert at.preset(config.name) == config


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("MT:8", {"kv_size": 9}, "the name says :8, but kv_size=9 is also given"),
        ("MT+wait=2:8", {"q_size": 3}, r"the name says \+wait=2, but q_size=3"),
        ("MT+k=2:8", {"top_k": 3}, r"the name says \+k=2, but top_k=3"),
        ("MT+chunk=2:8", {"chunk": 3}, r"the name says \+chunk=2, but chunk=3"),
        ("LRU+c=2:8", {"sigmas": 3}, r"the name says \+c=2, but sigmas=3"),
        ("LRU+quota=0.5:8", {"sigmas": 3}, r"the name says \+quota=0.5, but sigmas=3"),
        ("MT:8", {"sigmas": 0.0}, "sigmas=0.0 does not apply to FIFO"),
    ],
)
def test_a_name_and_arguments_that_disagree(text, arguments, message):
    with pytest.raises(at.ConfigError, match=message):
        at.preset(text, **arguments)


def test_a_name_and_arguments_that_agree():
    both = at.preset("LRU+c=2+wait=2+k=3+chunk=4:8", 8, 2, 4, 3, sigmas=2.0)
    assert both == at.preset("LRU", 8, 2, 4, 3, sigmas=2.0)


@pytest.mark.parametrize(
    "settings", [{"kv_size": 0}, {"kv_size": 8, "q_size": 8}, {"kv_size": 8, "top_k": 9}]
)
def test_impossible_sizes(settings):
    with pytest.raises(at.ConfigError, match="expected|slots"):
        at.preset("MT", **settings)


@pytest.mark.parametrize("field", ["present", "positions", "finish", "decode"])
def test_impossible_words(field):
    with pytest.raises(at.ConfigError, match=f"{field} is 'x', expected .* or "):
        at.MemoryConfig(at.FIFO(), 8, **{field: "x"})


# -------------------------------------------------------------------- memory=


@pytest.mark.parametrize("name", [n for n in NAMES if n != "attendre"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_name_is_the_same_system_for_a_model(name, causal):
    assert memory_for(f"{name}:64", causal=causal, **SHAPE) == at.preset(name, 64)


@pytest.mark.parametrize("causal", [True, False])
def test_a_number_is_the_recommended_system(causal):
    expected = at.preset(recommended(causal), 64)
    assert memory_for(64, causal=causal, **SHAPE) == expected
    assert memory_for("64", causal=causal, **SHAPE) == expected
    assert recommended(causal) == ("attendre-causal" if causal else "attendre")


def test_what_needs_no_name():
    config = at.preset("LRA-max+wait=8:64")
    assert memory_for(config, causal=True, **SHAPE) is config
    assert memory_for(None, causal=True, **SHAPE) is None
    assert memory_for("full", causal=False, **SHAPE) is None


def test_a_system_that_looks_ahead_on_a_causal_model():
    with pytest.raises(at.ConfigError, match="Use 'attendre-causal:64'.*attention='prefix'"):
        memory_for("attendre:64", causal=True, **SHAPE)
    assert memory_for("attendre:64", causal=False, **SHAPE) == at.preset("attendre:64")
    waiting = memory_for("attendre+wait=16:64", causal=True, **SHAPE)
    assert waiting == at.preset("attendre+wait=16:64")


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (True, "True is a bool, expected entries"),
        (1.5, "1.5 is a float"),
        (0, "kv_size is 0"),
        (-8, "the size is '-8'"),
        ("4k", "the size is '4k'"),
        ("MT", "the size is missing, expected 'MT:1024' .* or 'MT:64MiB'"),
        ("MT+softmax:1MiB", "does not apply to FIFO"),
        ("100B", "100B is too small: the smallest such memory, attendre-causal:1, takes"),
        ("AS:100B", "smallest such memory, AS:4, takes"),
        ("MT+k=64:1KiB", r"smallest such memory, MT\+k=64:64, takes"),
        ("0B", "not a number of bytes"),
        ("nonsense", "is not known"),
    ],
)
def test_memory_that_cannot_be(memory, message):
    with pytest.raises(at.ConfigError, match=message):
        memory_for(memory, causal=True, **SHAPE)


@given(
    name=st.sampled_from(["", *(f"{name}:" for name in NAMES), "LRA-sum+wait=half+chunk=7:"]),
    budget=st.integers(2_000_000, 9_000_000),
    kv_heads=st.integers(1, 4),
    group=st.integers(1, 3),
    head_dim=st.integers(1, 32),
    dtype=st.sampled_from(["float32", "float16", "bfloat16", "float64"]),
    batch=st.integers(1, 2),
)
def test_bytes_hold_as_many_entries_as_fit(name, budget, kv_heads, group, head_dim, dtype, batch):
    shape = {
        "layers": 2, "kv_heads": kv_heads, "head_dim": head_dim, "dtype": dtype, "batch": batch,
        "heads": kv_heads * group, "carry_dim": 24,
    }  # fmt: skip
    config = memory_for(f"{name}{budget}B", causal=False, **shape)
    assert config.nbytes(**shape) <= budget
    larger = at.preset(name.rstrip(":") or "attendre", config.kv_size + 1)
    assert larger.nbytes(**shape) > budget


@pytest.mark.parametrize(
    "text",
    ["attendre:64", "attendre+chunk=16:64", "attendre-causal:64", "H2O+chunk=16:64", "MT:64"],
)
def test_bytes_are_those_of_real_states(text):
    config = at.preset(text)
    stack = at.Stack((at.AttendreLayer(config.kv_memory(), config.q_memory()),) * 3)
    shape = {"heads": 4, "kv_heads": 2, "head_dim": 8, "carry_dim": 24, "batch": 2}
    state = stack.init(**shape, chunk=config.chunk, xp="numpy")
    real = sum(leaf.nbytes for leaf in at.tree.tree_leaves(state))
    assert config.nbytes(layers=3, **shape) == real
