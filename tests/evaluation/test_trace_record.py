"""The record is what the memories did: known answers, an independent look, and no effect."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

import attendre_core as at
from attendre_core.backend import backend
from attendre_core.evaluation.tiny.training import initial_parameters
from attendre_core.evaluation.tracing import LayerTrace, trace_text
from attendre_core.evaluation.tracing.record import AHEAD, EVICTED, HELD, REFUSED
from attendre_core.evaluation.tracing.recorder import Recorder
from attendre_core.layer import REASONS
from attendre_core.tree import tree_map
from attendre_core.zoo.architectures import architecture_of
from attendre_core.zoo.config import RawConfig
from attendre_core.zoo.loading.checkpoint import Stored, load_parameters
from attendre_core.zoo.model import Model

LENGTH, CHUNK, SIZE = 75, 8, 20
TOKENS = np.random.default_rng(0).integers(0, 40, LENGTH).tolist()


def naming(tokens: Any) -> list[str]:
    return [f"w{token} " for token in tokens]


class Drawn:
    """Random tensors in place of a checkpoint."""

    where, config = "drawn", RawConfig({}, "drawn")

    def __init__(self, arrays: dict[str, Any]) -> None:
        self.arrays = arrays

    def shape(self, name: str) -> tuple[int, ...] | None:
        return self.arrays[name].shape if name in self.arrays else None

    def read(self, name: str) -> Stored:
        return Stored(self.arrays[name], "float32")


@pytest.fixture(scope="module")
def grouped() -> Model:
    """A random decoder of 3 layers whose 4 heads share 2 K/V heads."""
    config = {
        "model_type": "llama", "hidden_size": 16, "intermediate_size": 16,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 40, "max_position_embeddings": 32, "tie_word_embeddings": True,
    }  # fmt: skip
    architecture = architecture_of(RawConfig(config, "config.json"))
    drawn = Drawn(initial_parameters(architecture, np.random.default_rng(3)))
    params, _ = load_parameters(drawn, architecture, backend("numpy"), "float32", progress=False)
    return Model(architecture, params, attention="prefix")


def layers_of(model: Model, memory: at.MemoryConfig, **options: Any) -> tuple[LayerTrace, ...]:
    (policy,) = trace_text(model, TOKENS, {"it": memory}, naming=naming, **options).policies
    return policy.layers


def arrivals(q_size: int, layer: int) -> list[list[int]]:
    """List the positions that a layer is offered at each step, by counting only.

    A layer passes on what came N positions earlier; at the end, layers are drained in turn.
    """
    offered = [list(range(i, min(i + CHUNK, LENGTH))) for i in range(0, LENGTH, CHUNK)]
    steps = [[] for _ in offered], offered
    for _ in range(layer):
        waiting: list[int] = []
        passed: list[list[int]] = []
        for chunk in steps[1]:
            waiting += chunk
            ready = max(len(waiting) - q_size, 0)
            passed.append(waiting[:ready])
            waiting = waiting[ready:]
        # The queue is N long and is cut into pieces of a chunk, of which the first may be empty.
        padded = [-1] * (q_size - len(waiting)) + waiting
        pieces = [padded[i : i + CHUNK] for i in range(0, q_size, CHUNK)]
        passed += [[p for p in piece if p >= 0] for piece in pieces]
        steps = steps[0], passed
    return steps[1]


@pytest.mark.parametrize("q_size", [0, 5, 12])
def test_first_in_first_out_has_a_known_answer(grouped: Model, q_size: int) -> None:
    """Position p goes when p + M is offered, in every layer, however late it reads."""
    memory = at.preset("MT", SIZE, q_size, CHUNK)
    for trace in layers_of(grouped, memory):
        offered = arrivals(q_size, trace.layer)
        born = {p: step for step, chunk in enumerate(offered) for p in chunk}
        assert trace.born.tolist() == [born[p] for p in range(LENGTH)], f"layer {trace.layer}"
        went = [born[p + SIZE] if p + SIZE < LENGTH else -1 for p in range(LENGTH)]
        assert trace.gone.tolist() == went, f"layer {trace.layer}"
        assert {REASONS[code] for code in trace.reason[: LENGTH - SIZE]} == {"oldest"}
        assert trace.survivors.tolist() == list(range(LENGTH - SIZE, LENGTH))


def test_a_memory_by_hand_says_the_same(grouped: Model) -> None:
    """Insert by hand what layer 0 reads, and compare after every step."""
    policy = at.AttentionSink(sinks=3)
    trace = layers_of(grouped, at.MemoryConfig(policy, SIZE, 0, CHUNK))[0]
    memory = at.KeyValueMemory(SIZE, policy)
    state = memory.init(batch=1, heads=1, head_dim=2)
    for step in range(trace.steps):
        start, stop = step * CHUNK, min(step * CHUNK + CHUNK, LENGTH)
        entries = np.ones((1, stop - start, 1, 2), dtype=np.float32)
        state, _ = memory.insert(state, entries, entries)
        held = np.flatnonzero(trace.at(step) == HELD)
        assert held.tolist() == sorted(state.position[state.valid].tolist()), f"step {step}"


MEMORIES = {
    "LFA": at.preset("LFA-1e-2", SIZE, 0, CHUNK, sigmas=1.0),
    "LRA and Q": at.preset("LRA-max", SIZE, 12, CHUNK, 6, sigmas=0.5),
    "visible": replace(at.preset("LRA-sum", SIZE, 5, CHUNK, sigmas=0.0), present="visible"),
    "flush": replace(at.preset("LFU", SIZE, 12, CHUNK, 4, sigmas=0.0), finish="flush"),
    "layers": at.preset("MT", SIZE, 5, CHUNK).with_layer_policies({1: at.LFA(), 2: at.LRU()}),
}


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=list(MEMORIES))
def test_the_map_is_what_the_memories_hold(
    grouped: Model, memory: at.MemoryConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Look into the state after every step of every layer, and compare with the map."""
    seen: list[tuple[int, int, list[int]]] = []
    attended = Recorder.attended

    def look(self: Recorder, number: int, layer: Any, block: Any, state: Any, *rest: Any) -> None:
        held = state.kv.position[0][state.kv.valid[0]]
        seen.append((number, self.step, sorted(held.tolist())))
        attended(self, number, layer, block, state, *rest)

    monkeypatch.setattr(Recorder, "attended", look)
    layers = layers_of(grouped, memory)
    assert len(seen) >= 3 * len(range(0, LENGTH, CHUNK))
    for number, step, held in seen:
        if step < layers[number].steps:
            got = np.flatnonzero(layers[number].at(step) == HELD).tolist()
            assert got == held, f"layer {number}, step {step}"
    for trace in layers:
        assert (trace.born < trace.steps).all()
        assert sum(trace.counts().values()) == LENGTH
        assert trace.size == SIZE


def test_states_follow_each_other(grouped: Model) -> None:
    for trace in layers_of(grouped, MEMORIES["LFA"]):
        states = trace.map()
        assert states.shape == (trace.steps, LENGTH)
        steps = zip(states[:-1].T.ravel(), states[1:].T.ravel(), strict=True)
        ahead_to = {(AHEAD, AHEAD), (AHEAD, HELD), (AHEAD, REFUSED)}
        later = {(HELD, HELD), (HELD, EVICTED), (EVICTED, EVICTED), (REFUSED, REFUSED)}
        assert set(steps) <= ahead_to | later
        refused = trace.reason == REASONS.index("refused")
        assert refused.any()
        assert (trace.gone[refused] == trace.born[refused]).all()


def test_layers_have_policies_of_their_own(grouped: Model) -> None:
    first, second, _ = layers_of(grouped, MEMORIES["layers"])
    assert first.survivors.tolist() == list(range(LENGTH - SIZE, LENGTH))
    assert second.survivors.tolist() != first.survivors.tolist()
    assert {REASONS[code] for code in second.reason} & {"refused", "lower score"}


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=list(MEMORIES))
def test_recording_changes_nothing(grouped: Model, memory: at.MemoryConfig) -> None:
    model = grouped.with_memory(memory)
    streams = [model.stream(observer=who) for who in (Recorder(LENGTH, (0, 1, 2)), None)]
    recorded, alone = ([*stream.read(TOKENS), *stream.finish()] for stream in streams)
    for one, other in zip(recorded, alone, strict=True):
        assert all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


@dataclass(frozen=True)
class Spy(at.Policy):
    """Keeps everything in order, and writes down the weights that the memory computes."""

    seen: ClassVar[list[tuple[Any, ...]]] = []

    def priority(self, stored: Any) -> None:
        return None

    def observe(self, stored: Any, attention: Any) -> None:
        place = np.flatnonzero((attention.position[0] == LENGTH - 1) & attention.valid[0])
        if place.size:
            weights = attention.weights[0, :, :, place[0]].reshape(4, -1)
            self.seen.append((stored.position[0], stored.valid[0], weights))


@pytest.mark.parametrize("attention", ["causal", "prefix"])
@pytest.mark.parametrize("q_size", [0, 12])
def test_the_last_query_is_the_last_query(grouped: Model, q_size: int, attention: Any) -> None:
    """The weights are those that the memory used, as a policy gets to see them."""
    model = Model(grouped.architecture, grouped.params, attention=attention)
    Spy.seen.clear()
    layers = layers_of(model, at.MemoryConfig(Spy(), SIZE, q_size, CHUNK))
    own = [seen for i, seen in enumerate(Spy.seen) if i % 2 == 0]  # the recorder asks once more
    assert len(own) == len(layers) == 3
    for trace, (position, valid, weights) in zip(layers, own, strict=True):
        assert trace.attended is not None
        order = np.argsort(position[valid])
        assert trace.attended.position.tolist() == position[valid][order].tolist()
        assert trace.attended.weight == pytest.approx(weights[:, valid][:, order], abs=1e-6)
        assert trace.attended.weight.sum(axis=1) == pytest.approx(1, abs=1e-5)
        assert trace.attended.step < trace.steps


def test_only_the_top_k_have_weight(grouped: Model) -> None:
    for trace in layers_of(grouped, MEMORIES["LRA and Q"]):
        assert trace.attended is not None
        assert ((trace.attended.weight > 0).sum(axis=1) <= 6).all()
        assert trace.attended.weight.sum(axis=1) == pytest.approx(1, abs=1e-5)
        assert trace.attended.mean.sum() == pytest.approx(1, abs=1e-5)


def test_eviction_per_head(grouped: Model) -> None:
    """A position is there as long as one of the K/V heads has it."""

    @dataclass(frozen=True)
    class PerHead(at.MemoryConfig):
        def kv_memory(self, layer: int = 0, window: int | None = None) -> at.KeyValueMemory:
            return replace(super().kv_memory(layer, window), per_head=True)

    recorder = Recorder(LENGTH, (0, 1, 2))
    memory = PerHead(at.LRA("sum", initial=at.InitialScore(0.0)), SIZE, 0, CHUNK)
    stream = grouped.with_memory(memory).stream(observer=recorder)
    stream.feed(TOKENS)
    stream.finish()
    for trace, state in zip(recorder.layer_traces(), stream._states, strict=True):
        held = np.unique(state.kv.position[0][state.kv.valid[0]])
        assert trace.survivors.tolist() == held.tolist()
        assert len(held) > SIZE
        assert trace.attended is not None
        assert trace.attended.weight.sum(axis=1) == pytest.approx(1, abs=1e-5)


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_backends_agree(grouped: Model, library: str) -> None:
    pytest.importorskip(library)
    memory = at.preset("LRA-sum", SIZE, 0, CHUNK, 6, sigmas=0.5)
    array = backend(library).from_numpy
    other = Model(
        grouped.architecture, tree_map(array, grouped.params), library=library, attention="prefix"
    )
    for ours, theirs in zip(layers_of(grouped, memory), layers_of(other, memory), strict=True):
        assert np.array_equal(ours.gone, theirs.gone)
        assert ours.attended is not None
        assert theirs.attended is not None
        assert theirs.attended.weight == pytest.approx(ours.attended.weight, abs=1e-4)


def test_layers_can_be_chosen_and_progress_is_told(grouped: Model) -> None:
    read: list[int] = []
    (only,) = layers_of(grouped, MEMORIES["LFA"], layers=[1], on_read=read.append)
    whole = layers_of(grouped, MEMORIES["LFA"])[1]
    assert only.layer == 1
    assert np.array_equal(only.gone, whole.gone)
    assert sum(read) == LENGTH


def test_a_text_shorter_than_a_chunk(grouped: Model) -> None:
    trace = trace_text(grouped, [7], {"it": MEMORIES["LRA and Q"]}, naming=naming)
    assert trace.words == ("w7 ",)
    for layer in trace.policies[0].layers:
        assert layer.survivors.tolist() == [0]
        assert layer.attended is not None
        assert layer.attended.weight == pytest.approx(np.ones((4, 1)))


@pytest.mark.parametrize(
    ("tokens", "memories", "layers", "match"),
    [
        ([], MEMORIES, None, "no tokens"),
        ([1], {}, None, "no memories"),
        ([1], MEMORIES, [3], "layer 3 does not exist; the model has layers 0 to 2"),
    ],
)
def test_mistakes_are_named(
    grouped: Model, tokens: Any, memories: Any, layers: Any, match: str
) -> None:
    with pytest.raises(at.ConfigError, match=match):
        trace_text(grouped, tokens, memories, layers=layers, naming=naming)
