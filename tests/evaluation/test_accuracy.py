"""Measuring: what is read, what is counted, and that neither batch nor library matters."""

from __future__ import annotations

import numpy as np
import pytest

from attendre_core.errors import ConfigError
from attendre_core.evaluation import load_tiny, measure, system
from attendre_core.evaluation.tasks import Document, LookAhead
from attendre_core.zoo.model import Model


def test_the_batch_does_not_matter(tiny: Model, long_documents: list[Document]) -> None:
    chosen = system("LFA-1e-3+c=0", 32, 16, top_k=16)
    one, other = (measure(tiny, long_documents, chosen, batch=batch) for batch in (5, 32))
    assert np.array_equal(one.right, other.right)
    assert np.array_equal(one.admitted, other.admitted)
    assert np.array_equal(one.present, other.present)


def test_outcomes_are_in_the_order_of_the_documents(
    tiny: Model, long_documents: list[Document]
) -> None:
    chosen = system("LRA-sum+c=0", 32, 16, top_k=16)
    there = measure(tiny, long_documents, chosen, batch=4)
    back = measure(tiny, long_documents[::-1], chosen, batch=4)
    assert np.array_equal(there.right, back.right[::-1])
    assert np.array_equal(there.present, back.present[::-1])


def test_full_is_full_attention(tiny: Model) -> None:
    """On inputs no longer than those of the training, where nothing is clamped."""
    documents = list(LookAhead("single").documents(5, 10, chunks=(8, 8)))
    rows = [document.tokens.tolist() for document in documents]
    logits = np.asarray(tiny.logits(rows))[:, -1]
    expected = logits.argmax(axis=-1) == [document.answer for document in documents]
    assert np.array_equal(measure(tiny, documents, system("full", 16)).right, expected)


def test_a_memory_of_one_chunk_is_no_memory(long_documents: list[Document]) -> None:
    """For a decoder: each chunk for itself, so that only the last one counts."""
    model = load_tiny("prefix-lm")
    one = measure(model, long_documents, system("MT", 16))
    last = measure(model, long_documents, system("no-memory", 16))
    assert np.array_equal(one.right, last.right)


def test_what_each_control_reads(long_documents: list[Document]) -> None:
    document = long_documents[0]
    both = (document.tokens, document.closed_book)
    assert np.array_equal(system("no-memory", 64).part_of(*both), document.tokens[-16:])
    assert system("closed-book", 64).part_of(*both) is both[1]
    for name in ("full", "first-M", "random", "pinned", "MT", "LFA-0"):
        assert system(name, 64).part_of(*both) is document.tokens


def test_admitted_shares(tiny: Model, long_documents: list[Document]) -> None:
    assert np.all(measure(tiny, long_documents, system("MT", 32)).admitted == 1.0)
    assert np.all(measure(tiny, long_documents, system("first-M", 32)).admitted == 0.0)
    low = measure(tiny, long_documents, system("LRA-sum+c=3", 32)).admitted
    high = measure(tiny, long_documents, system("LRA-sum+c=-3", 32)).admitted
    assert low.mean() < 0.5 < high.mean()


@pytest.mark.parametrize(
    ("library", "name", "waits"),
    # What JAX compiles takes long: one model, and no program that lets waiting queries out.
    [("torch", "prefix-lm", 16), ("torch", "encoder-decoder", 16), ("jax", "prefix-lm", 0)],
)
def test_libraries_agree(
    library: str, name: str, waits: int, long_documents: list[Document]
) -> None:
    pytest.importorskip(library)
    some = [document for document in long_documents if document.tokens.size == 160][:3]
    assert some
    chosen = system("LRA-sum+c=0", 32, waits)
    here = measure(load_tiny(name), some, chosen)
    there = measure(load_tiny(name, backend=library), some, chosen)
    assert np.array_equal(here.right, there.right)
    np.testing.assert_allclose(here.present, there.present)


def test_nothing_to_read(tiny: Model) -> None:
    with pytest.raises(ConfigError, match="no documents"):
        measure(tiny, [], system("MT", 16))
