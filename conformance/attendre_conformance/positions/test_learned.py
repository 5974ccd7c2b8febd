"""Learned absolute positions: rows of a table, added before a layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.layer.running import LayerRunner, by_index
from attendre_conformance.layer.texts import WHOLE, texts
from attendre_conformance.options import law
from attendre_conformance.oracle.positions import full_attention
from attendre_conformance.positions.pairs import BATCH
from attendre_conformance.running import from_numpy

pytestmark = pytest.mark.attendre_profile("laws")


@law()
@given(data=st.data())
def test_learned_positions_look_rows_up(backend: Any, data: st.DataObject) -> None:
    """A position gets its row of the table; beyond the table the last one, or from the start again.

    Specification, reading 34 (BERT).
    """
    length = data.draw(st.sampled_from((1, 4, 7)), label="rows of the table")
    beyond: Any = data.draw(st.sampled_from(("last", "wrap")), label="beyond")
    place, size = st.integers(0, 30), BATCH * 3
    places = data.draw(st.lists(place, min_size=size, max_size=size), label="positions")
    table = np.arange(length * 3, dtype=np.float32).reshape(length, 3)
    position = np.asarray(places, dtype=np.int32).reshape(BATCH, 3)
    learned = at.LearnedPositions(length, beyond)
    got = np.asarray(backend.to_numpy(learned.embed(*from_numpy(backend, (table, position)))))
    rows = [p % length if beyond == "wrap" else min(p, length - 1) for p in places]
    want = np.stack([table[row] for row in rows]).reshape(BATCH, 3, 3)
    comparing.assert_same(got, want, f"{learned} at {places}")


BEYOND: tuple[tuple[int, Any], ...] = ((6, "last"), (4, "wrap"))


@law()
@given(data=st.data())
def test_learned_positions_give_full_attention(backend: Any, data: st.DataObject) -> None:
    """Added to queries and keys before a large layer, they give full attention with positions.

    Specification, law-bidirectional; reading 34.
    """
    text = data.draw(texts(WHOLE, exact=False), label="text")
    length, beyond = data.draw(st.sampled_from(BEYOND), label="rows of the table, beyond")
    learned = at.LearnedPositions(length, beyond)
    table = np.random.default_rng(0).standard_normal((length, WHOLE.head_dim)).astype(np.float32)
    where = np.where(text.valid, text.position, 0).astype(np.int32)
    added = np.asarray(backend.to_numpy(learned.embed(*from_numpy(backend, (table, where)))))[
        :, :, None, :
    ]
    layer = at.AttendreLayer(at.KeyValueMemory(12), at.DataOnlyMemory(10), encoding=learned)
    fields = {
        "query": np.where(text.valid[..., None, None], text.query + added, 0),
        "key": np.where(text.valid[..., None, None], text.key + added, 0),
    }
    _, outputs = LayerRunner(backend, layer).run(text.but(**fields), WHOLE.seq)
    for b in range(WHOLE.batch):
        number = [
            int(p) % length if beyond == "wrap" else min(int(p), length - 1) for p in where[b]
        ]
        rows = table[number].astype(np.float64)[:, None, :]
        want = full_attention(
            text.query[b] + rows, text.key[b] + rows, text.value[b], where[b], text.valid[b]
        )
        got = by_index(outputs, WHOLE.length)[b]
        comparing.assert_close(got, want, f"row {b}: output by position")
