"""A step neither reads from the device nor copies to it, and makes nothing elsewhere.

PyTorch's ``meta`` device stands for an accelerator: see `watching.py`. Every policy, scheme and
option takes steps there; the first may make tables, the others may copy nothing.
"""

from __future__ import annotations

import numpy as np
import pytest

import attendre_core as at
from attendre_core import policies, positions
from attendre_core.memory import cross_attention
from attendre_core.tree import tree_leaves

torch = pytest.importorskip("torch")

B, S, H, G, D, M = 2, 4, 4, 2, 8, 8
POLICIES = {
    "FIFO": at.FIFO(),
    "AttentionSink": at.AttentionSink(sinks=2),
    "Random": at.Random(),
    "LRU": at.LRU(),
    "LFU": at.LFU(initial=at.ConstantScore(1.0)),
    "LRA": at.LRA(pool="last", initial=at.QuantileScore(0.2)),
    "LRA-max": at.LRA(pool="max"),
    "LRA-sum": at.LRA(pool="sum", initial=at.QuotaScore(0.5)),
    "LFA": at.LFA(decay=1e-3, initial=at.InitialScore(1.0)),
    "LFA-softmax": at.LFA(decay=0.0, score="softmax"),
    "LFA-clip": at.LFA(decay=0.0, score=at.Clip(-1.0, 1.0)),
    "LFA-shift": at.LFA(decay=0.0, score=at.Shift(1.0), hold=True),
    "H2O": at.H2O(),
    "TOVA": at.TOVA(),
    "ValueNorm": at.ValueNorm(),
    "SnapKV": at.SnapKV(window=2, kernel=3),
    "Defensive": at.Defensive(window=2, value_norm=True),
    "DropKV": at.DropKV(window=2),
    "Salience": at.Salience(),
    "Knorm": at.Knorm(),
    "TRAMS": at.TRAMS(),
    "KeyDiff": at.KeyDiff(),
    "Leverage": at.Leverage(),
    "LagKV": at.LagKV(lag=3),
    "RKV": at.RKV(window=2, kernel=3),
    "ExpectedAttention": at.ExpectedAttention(),
    "Nexus": at.Nexus(),
}
SCHEMES = {
    "NoPosition": at.NoPosition(),
    "RoPE": at.RoPE(),
    "RoPE-Interpolation": at.RoPE(scaling=at.Interpolation(2.0), interleaved=True),
    "RoPE-NTK": at.RoPE(scaling=at.NTK(2.0), rotary_dim=4),
    "RoPE-YaRN": at.RoPE(scaling=at.YaRN(2.0, 64)),
    "RoPE-Llama3Scaling": at.RoPE(scaling=at.Llama3Scaling(2.0, 64)),
    "LMInfinite": at.LMInfinite(3),
    "InCache": at.InCache(),
    "Window": at.Window(3, at.RoPE()),
    "T5Bias": at.T5Bias(),
    "ALiBi": at.ALiBi(),
}
#: Options of a memory and of its layer, one at a time and together.
OPTIONS = [
    {"present": "visible"},
    {"per_head": True},
    {"present": "visible", "per_head": True, "top_k": 3},
    {"sinks": 2, "pin": ((0, 2),), "protect_recent": 2},
    {"ties": at.RandomTies(3), "present": "visible"},
    {"retrieval": "gather", "top_k": 3},
    {"retrieval": "approximate", "top_k": 3},
    {"top_k": 3, "causal": True, "scale": 0.5},
    {"causal": True, "trace": True},
    {"causal": True, "dtype": torch.bfloat16, "donate": True},
    {"documents": True, "valid": True, "causal": True, "donate": True},
]


def randn(heads, dtype=torch.float32):
    return torch.randn(B, S, heads, D, device="meta", dtype=dtype)


def layer_of(policy, scheme, waiting=True, top_k=None, causal=False, trace=False, **options):
    return at.AttendreLayer(
        at.KeyValueMemory(M, policy, **options), at.DataOnlyMemory(3) if waiting else None,
        top_k=top_k, causal=causal, trace=trace, encoding=scheme,
    )  # fmt: skip


def stray(*trees):
    """Return the devices, other than ``meta``, of any tensor in nested tuples."""
    found = {leaf.device.type for leaf in tree_leaves(trees) if leaf is not None}
    return [f"a tensor on {device}" for device in found - {"meta"}]


def problems_of(layer, watching, dtype=torch.float32, donate=False, documents=False, valid=False):
    """Read three chunks and let the queue out; return what touched the host after the first."""
    learned = isinstance(layer.encoding, at.T5Bias)
    options = {"encoding_params": torch.zeros(32, H, device="meta") if learned else None}
    state = layer.init(
        batch=B, heads=H, kv_heads=G, head_dim=D, xp="torch", dtype=dtype, device="meta", chunk=S,
        documents=documents,
    )  # fmt: skip
    chunk = at.Chunk(
        randn(H, dtype), randn(G, dtype), randn(G, dtype),
        valid=torch.ones(B, S, dtype=torch.bool, device="meta") if valid else None,
        document=torch.zeros(B, S, dtype=torch.int32, device="meta") if documents else None,
    )  # fmt: skip
    state, _ = layer.step(state, chunk, **options)
    with watching.Watch() as watch:
        for _ in range(2):
            state, out = layer.step(state, chunk, donate=donate, **options)
        flushed = layer.flush(state, **options)
        drained = layer.drain(state, 2, **options)
        decoding = layer.decoding(state, 5)[1]
    return watch.everything + stray(state, out, flushed, drained, decoding)


def problems_in(cases, watching):
    found = {}
    for name, layer, *options in cases:
        problems = problems_of(layer, watching, **(options[0] if options else {}))
        if problems:
            found[name] = problems
    return found


def test_the_watch_sees_what_it_is_for(watching):
    x = torch.ones(3, device="meta")
    seen = {
        "a list": lambda: torch.asarray([1.0, 2.0, 3.0], device="meta"),
        "an array": lambda: x + torch.tensor(torch.ones(3).numpy(), device="meta"),
        "a tensor of the host": lambda: torch.ones(3, device="cpu").to("meta"),
        "a number of the host": lambda: x * torch.ones((), device="cpu"),
        "an index of the host": lambda: x[[0, 2]],
    }
    for name, touch in seen.items():
        with watching.Watch() as watch:
            touch()
        assert watch.everything, name
    for read in (x.sum().item, x.tolist, x.nonzero, lambda: bool(x[0] > 0), x.numpy):
        with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
            read()
    with watching.Watch() as watch:
        _ = torch.where(x > 0, x * 2.0, -1.0).masked_fill(x > 1, 0.0)[:, None].sum()
    assert watch.everything == []


def test_every_policy_and_scheme_is_swept():
    """A new name must be added here."""
    other = {"Policy", "Stored", "New", "AnyInitial", "Attention", "RandomTies", "Encoded",
             "Encoding", "Places", "Term", "alibi_slopes", "bucket_of",
             "LearnedPositions", "SinusoidalPositions",
             # These need parameters or a function of the user.
             "ExpireSpan", "DynamicContextPruning", "Predicted",
             "TransformerXLPositions", "DisentangledPositions"}  # fmt: skip
    known = str([*POLICIES.values(), *SCHEMES.values()])
    missing = {n for n in {*dir(policies), *dir(positions)} - other if n[0].isupper()}
    assert {name for name in missing if f"{name}(" not in known} == set()


def test_every_policy(watching):
    schemes = [at.RoPE(), at.NoPosition(), at.ALiBi()]
    cases = [
        (name, layer_of(policy, schemes[number % 3], number % 2 == 0, 3 if number % 4 else None))
        for number, (name, policy) in enumerate(POLICIES.items())
    ]
    assert problems_in(cases, watching) == {}


def test_every_scheme(watching):
    scored = [at.LFA(), at.LRA(pool="max"), at.H2O()]
    cases = [
        (name, layer_of(scored[number % 3], scheme, number % 2 == 0, causal=number % 3 > 0))
        for number, (name, scheme) in enumerate(SCHEMES.items())
    ]
    assert problems_in(cases, watching) == {}


def test_every_option(watching):
    cases = []
    for number, given in enumerate(OPTIONS):
        of_step = {k: given[k] for k in given.keys() & {"dtype", "donate", "documents", "valid"}}
        of_layer = {k: given[k] for k in given.keys() - of_step.keys()}
        scheme = at.RoPE() if number % 2 else at.LMInfinite(3)
        cases.append((str(given), layer_of(at.LFA(), scheme, **of_layer), of_step))
    assert problems_in(cases, watching) == {}


def test_memories_alone(watching):
    """What a layer does not call."""
    memory = at.KeyValueMemory(M, at.LRA(pool="max"))
    kv = memory.init(batch=B, heads=G, head_dim=D, xp=torch, device="meta")
    outputs = at.EncoderOutputMemory(M)
    encoded = outputs.init(batch=B, dim=D, xp=torch, device="meta")
    x, at_ = torch.ones(B, S, D, device="meta"), torch.zeros(B, S, dtype=torch.int32, device="meta")
    key, value, real = randn(G), randn(G), at_ == at_
    kv, _ = memory.insert(kv, key, value)
    kv, _ = memory.retrieve(kv, randn(H), top_k=2, encoding=at.RoPE())
    embed = (at.LearnedPositions(8), positions.SinusoidalPositions(D))
    embed[1].embed(at_)
    with watching.Watch() as watch:
        kv, evicted = memory.insert(kv, key, value, valid=real, pinned=~real)
        kv, found = memory.retrieve(kv, randn(H), top_k=2, encoding=at.RoPE())
        kv, nothing = memory.attend(kv, randn(H)[:, :0])
        encoded, gone = outputs.insert(encoded, x, at_, real)
        held = outputs.read(encoded)
        across = cross_attention(randn(H), key, value, real)
        added = embed[0].embed(torch.ones(8, D, device="meta"), at_), embed[1].embed(at_)
    assert watch.everything == []
    seen = (kv, evicted, found, nothing, encoded, gone, held, across, added)
    assert (
        stray(*map(tuple, seen[:3]), nothing, *map(tuple, (encoded, gone, held)), across, added)
        == []
    )


# ---------------------------------------------------------------- modules, and transformers


SMALL = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16,
}  # fmt: skip


def test_a_module_steps(watching):
    from attendre_torch import AttendreAttention

    module = AttendreAttention(
        32, heads=H, memory="attendre-causal:8", causal=True, encoding=at.RoPE(), device="meta"
    )
    x = torch.zeros(B, S, 32, device="meta")
    _, state = module(x)
    with watching.Watch() as watch:
        out, state = module(x, state)
    assert watch.everything + stray(out, state) == []


@pytest.mark.parametrize("memory", ["attendre-causal:8", "H2O:8"])
def test_the_cache_for_transformers_steps(memory, watching):
    transformers = pytest.importorskip("transformers")
    from attendre_torch import AttendreCache

    config = transformers.LlamaConfig(**SMALL)
    model = transformers.LlamaForCausalLM(config).eval()
    cache = AttendreCache(model, memory)
    model = model.to("meta")
    ids = torch.zeros(B, S, dtype=torch.int64, device="meta")
    with torch.no_grad():
        for chunk in (ids, ids, ids[:, :1]):
            model(chunk, past_key_values=cache)
        with watching.Watch() as watch:
            for chunk in (ids[:, :1], ids):
                model(chunk, past_key_values=cache)
    held = [memory.state for memory in cache.memories.values()]
    assert watch.everything + stray(held) == []


# ---------------------------------------------------------------- another default device


@pytest.fixture
def meta_by_default():
    """Whatever is made without a device has no numbers."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def numbers(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32))


def stepped(layer):
    """Read random chunks, let the queue out, decode; return every tensor."""
    state = layer.init(batch=B, heads=H, kv_heads=G, head_dim=D, xp="torch", device="cpu", chunk=S)
    seen = []
    for seed in range(3):
        parts = (numbers(seed, B, S, heads, D) for heads in (H, G, G))
        state, out = layer.step(state, at.Chunk(*parts))
        seen.append(out)
    return tree_leaves((seen, state, layer.flush(state), layer.decoding(state, 3)[1]))


@pytest.mark.parametrize("name", ["RoPE", "LMInfinite", "ALiBi"])
def test_layers_do_not_ask_for_the_default_device(name, meta_by_default):
    for options in ({"causal": True}, {"top_k": 3}, {"present": "visible", "per_head": True}):
        got = stepped(layer_of(at.LFA(), SCHEMES[name], **options))
        torch.set_default_device(None)
        want = stepped(layer_of(at.LFA(), SCHEMES[name], **options))
        torch.set_default_device("meta")
        assert {x.device.type for x in got} == {"cpu"}
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_modules_do_not_ask_for_the_default_device():
    from attendre_torch import AttendreAttention

    module = AttendreAttention(
        32, heads=H, memory="attendre-causal:8", causal=True, encoding=at.RoPE()
    )
    x = numbers(0, B, S, 32)
    want, _ = module(x, module(x)[1])
    torch.set_default_device("meta")
    try:
        got, state = module(x, module(x)[1])
    finally:
        torch.set_default_device(None)
    assert torch.equal(got, want)
    assert {leaf.device.type for leaf in tree_leaves(state)} == {"cpu"}


def test_the_cache_for_transformers_does_not_ask_for_the_default_device():
    transformers = pytest.importorskip("transformers")
    from attendre_torch import AttendreCache

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SMALL)
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.arange(B * 12).reshape(B, 12)

    def written():
        cache = AttendreCache(model, "attendre-causal:8")
        seen = []
        with torch.no_grad():
            for start in range(0, 12, 4):
                seen.append(model(ids[:, start : start + 4], past_key_values=cache).logits)
        return torch.cat(seen, dim=1), tree_leaves(
            [memory.state for memory in cache.memories.values()]
        )

    want, _ = written()
    torch.set_default_device("meta")
    try:
        got, held = written()
    finally:
        torch.set_default_device(None)
    assert torch.equal(got, want)
    assert {leaf.device.type for leaf in held} == {"cpu"}
