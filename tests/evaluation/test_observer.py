"""Watching changes nothing and counts right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.evaluation import measure, system
from attendre_core.evaluation.observer import Presence
from attendre_core.evaluation.tasks import Document
from attendre_core.layer import LayerState
from attendre_core.layer.block import Flow
from attendre_core.zoo.model import Model

CONFIGS = [
    at.preset("LFA-1e-3", 32, 16, 16, 16, sigmas=0.0),
    at.preset("LRA-max", 48, 0, 16, None, sigmas=0.0),
    at.MemoryConfig(at.LRA("sum"), 40, 24, 16, present="visible", finish="flush"),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.kv_size}-{c.q_size}")
def test_it_changes_nothing(
    tiny: Model, config: at.MemoryConfig, long_documents: list[Document]
) -> None:
    rows = [document.tokens.tolist() for document in long_documents[:4]]
    presence = Presence([len(row) for row in rows], config.chunk)
    streams = [tiny.with_memory(config).stream(len(rows), observer=who) for who in (presence, None)]
    watched, alone = ([*stream.read(rows), *stream.finish()] for stream in streams)
    for one, other in zip(watched, alone, strict=True):
        assert all(np.array_equal(*pair) for pair in zip(one, other, strict=True))
    assert np.all((presence.shares > 0) & (presence.shares <= 1))


def test_it_counts_what_a_trace_says(tiny: Model, long_documents: list[Document]) -> None:
    """One row, one layer and one step at a time, by sets of positions."""
    config = at.preset("LRA-sum", 32, 16, 16, None, sigmas=0.0)
    row = long_documents[0].tokens.tolist()
    presence = Presence([len(row)], 16)
    found: list[float] = []
    stream = tiny.with_memory(config).stream(observer=presence)
    note = presence.attended

    def check(number: int, layer: Any, block: Any, state: Any, flow: Any, trace: Any) -> None:
        note(number, layer, block, state, flow, trace)
        held = set(state.kv.position[0][state.kv.valid[0]].tolist())
        for place, real in zip(flow.position[0], flow.valid[0], strict=True):
            if real:
                own = range(place // 16 * 16, place // 16 * 16 + 16)
                found.append(len(held & set(own)) / 16)

    presence.attended = check  # type: ignore[method-assign]
    stream.feed([row])
    stream.finish()
    assert len(found) == 2 * len(row)
    assert presence.shares[0] == pytest.approx(np.mean(found))
    assert presence.shares[0] < 1


def test_known_shares(tiny: Model, long_documents: list[Document]) -> None:
    def present(name: str, kv: int, q: int = 0) -> np.ndarray:
        return measure(tiny, long_documents, system(name, kv, q)).present

    assert np.all(present("MT", 16) == 1.0)
    assert np.all(present("MT", 64, 32) == 1.0)
    lengths = np.asarray([document.tokens.size for document in long_documents])
    np.testing.assert_allclose(present("first-M", 32), 32 / lengths)


def test_a_last_chunk_that_is_not_full() -> None:
    presence = Presence([20], 16)
    assert presence.shares.tolist() == [1.0]
    position, valid = np.asarray([[16, 17, 18, 19]], np.int32), np.ones((1, 4), dtype=bool)
    held = at.KeyValueMemory(size=4).init(batch=1, heads=1, head_dim=2)
    held = held._replace(position=np.asarray([[0, 17, 18, 99]], np.int32), valid=valid)
    flow = Flow(None, position, valid, None, None)
    layer: Any = None
    presence.attended(0, layer, layer, LayerState(held, None), flow, None)
    assert presence.shares.tolist() == [0.5]
