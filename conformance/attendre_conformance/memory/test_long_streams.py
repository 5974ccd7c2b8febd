"""Laws of long streams: what happens at position ten million is what happens at the start."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.layer.running import LayerRunner, by_index
from attendre_conformance.layer.texts import STREAM, texts
from attendre_conformance.memory.running import kept
from attendre_conformance.options import law
from attendre_conformance.running import few, to_numpy

pytestmark = pytest.mark.attendre_profile("laws")

#: Of each kind the first represents all where code is compiled.
SCHEMES = {
    "rotated": (
        at.RoPE(),
        at.RoPE(rotary_dim=2),
        at.RoPE(scaling=at.YaRN(4.0, 64)),
        at.LMInfinite(4, rope=at.RoPE(scaling=at.NTK(8.0))),
    ),
    "clamped": (at.LMInfinite(4), at.LMInfinite(1)),
    "counted": (at.T5Bias(8, 16), at.ALiBi(), at.InCache()),
}


@pytest.mark.parametrize("kind", SCHEMES)
@law()
@given(data=st.data())
def test_positions_of_any_size_are_told_apart(backend: Any, kind: str, data: st.DataObject) -> None:
    """A text that begins at position ten million is read as one that begins at 0.

    Specification, readings 30-34: schemes see differences.
    """
    encoding = data.draw(st.sampled_from(few(backend, SCHEMES[kind])), label="encoding")
    text = data.draw(texts(STREAM, exact=False), label="text")
    first = np.int32(data.draw(st.sampled_from((10**7, 1_000_003)), label="first position"))
    memory = at.KeyValueMemory(6)
    runner = LayerRunner(backend, at.AttendreLayer(memory, at.DataOnlyMemory(2), encoding=encoding))
    state, outputs = runner.run(text, STREAM.seq)
    later, others = runner.run(text.but(position=text.position + first), STREAM.seq)
    one, two = kept(to_numpy(backend, state.kv)), kept(to_numpy(backend, later.kv))
    assert [[p + first for p in row] for row in one] == two, f"{encoding}: keeps {one} and {two}"
    comparing.assert_close(
        by_index(others, STREAM.length),
        by_index(outputs, STREAM.length),
        f"{encoding}, from position {first}: output",
    )
