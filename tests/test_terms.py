"""Logits of several terms, attention over them and their sums, against the definition of a term."""

import numpy as np
import pytest

from attendre_core import force_generic, ops
from attendre_core.backend import backend, namespace_of

LIBRARIES = ["numpy", "array_api_strict", "torch", "jax"]
BATCH, G, R, QUERIES, DIM = 3, 2, 2, 5, 8
#: (low, high) of each term; the first is for all pairs that no other takes over.
BOUNDS = {
    "one term": [(None, None)],
    "past": [(None, None), (9, None)],
    "both sides": [(None, None), (None, -8), (9, None)],
    "all far": [(None, None), (None, 1), (0, None)],  # at a distance of 0 both hold
    "overlapping": [(None, None), (-30, 30), (0, 60)],
}
#: What else decides who may attend to whom, and how records are kept.
MASKS = ["all", "causal", "near", "bias", "per head", "limit", "sink"]
#: Few, and so many that compiled code takes them in blocks.
SLOTS = [12, 300]


@pytest.fixture(params=LIBRARIES)
def library(request):
    if request.param != "numpy":
        pytest.importorskip(request.param)
    return backend(request.param)


def stretched(x, at):
    """Apply positions: not a rotation, but every position gives another product."""
    return x * (1.0 + namespace_of(x).astype(at, x.dtype) / 1024)[..., None]


def records(slots, mask):
    """Draw slots in no order, some of them empty, padding among queries, a row with no entry."""
    rng = np.random.default_rng(slots)
    heads = G if mask == "per head" else 1
    query = 2 * slots + 3 * np.arange(QUERIES) + np.zeros((BATCH, 1, 1, 1))
    key = np.stack([rng.permutation(4 * slots)[:slots] for _ in range(BATCH * heads)])
    key = key.reshape(BATCH, heads, slots)
    order = rng.permuted(np.tile(np.arange(slots), (BATCH, heads, 1)), axis=-1)
    last = query.max(axis=-1, keepdims=True)
    whole = {
        "query_position": query,
        "key_position": key,
        "order": order,
        "query_place": query - last,
        "key_place": key - last[..., 0],
    }
    filled = np.asarray([1.0, 0.7, 0.0])[:, None, None]
    made = {
        **{name: array.astype(np.int32) for name, array in whole.items()},
        "query_valid": rng.random((BATCH, QUERIES)) < np.asarray([1.0, 0.6, 0.6])[:, None],
        "key_valid": rng.random((BATCH, heads, slots)) < filled,
    }
    if mask == "bias":
        made["bias"] = rng.normal(size=(BATCH, G, R, QUERIES, slots)).astype(np.float32)
    if mask == "near":
        made["near"] = rng.random((BATCH, 1, 1, QUERIES, slots)) < 0.5
    if mask == "limit":
        made["limit"] = 2.5
    if mask == "sink":
        made["sink"] = rng.normal(size=(1, G, R, 1, 1)).astype(np.float32)
    return made


def arrays_of(library, made):
    return {
        name: library.from_numpy(value) if isinstance(value, np.ndarray) else value
        for name, value in made.items()
    }


def inputs(slots):
    rng = np.random.default_rng(slots + 1)
    query = rng.normal(size=(BATCH, G, R, QUERIES, DIM))
    key, value = rng.normal(size=(2, BATCH, G, slots, DIM))
    weight = rng.random((BATCH, QUERIES))
    return [array.astype(np.float32) for array in (query, key, value, weight)]


def computed(made, query, key, value, weight, bounds, causal):
    """Return logits, outputs, sums of logits and weighted sums."""
    terms = [ops.Term(query, key, stretched, made["query_place"], made["key_place"])]
    for number, (low, high) in enumerate(BOUNDS[bounds][1:], start=1):
        # As in LMInfinite: one position for all keys, and queries as they are.
        fixed = made["key_place"][:, :, :1] * 0 + 512 * number
        terms.append(ops.Term(query, key, stretched, None, fixed, low, high))
    pairs = ops.Pairs(**made, terms=tuple(terms), causal=causal, memo={})
    return (
        ops.logits(pairs),
        ops.attend(pairs, value),
        ops.sum_logits(pairs),
        ops.sum_logits(pairs, weight),
    )


def defined(made, query, key, value, weight, bounds, causal):
    """Do the same in double precision, pair by pair; and tell which pairs count."""
    query, key = query.astype(np.float64), key.astype(np.float64)
    distance = made["query_place"][..., None] - made["key_place"][:, :, None, None, :]
    rows = query * (1 + made["query_place"] / 1024)[..., None]
    logits = np.einsum("bgrqd,bgsd->bgrqs", rows, key * (1 + made["key_place"] / 1024)[..., None])
    for number, (low, high) in enumerate(BOUNDS[bounds][1:], start=1):
        low, high = -np.inf if low is None else low, np.inf if high is None else high
        own = np.einsum("bgrqd,bgsd->bgrqs", query, key * (1 + number / 2))
        logits = np.where((distance >= low) & (distance < high), own, logits)
    if "limit" in made:
        logits = made["limit"] * np.tanh(logits / made["limit"])
    logits = logits + made.get("bias", 0.0)
    visible = np.broadcast_to(made["key_valid"][:, :, None, None, :], logits.shape).copy()
    if causal:
        visible &= made["key_position"][:, :, None, None, :] <= made["query_position"][..., None]
    visible &= made.get("near", True)
    top = logits.max(axis=-1, keepdims=True)
    raised = np.where(visible, np.exp(logits - top), 0.0)
    total = raised.sum(axis=-1, keepdims=True)
    total = total + (np.exp(made["sink"] - top) if "sink" in made else 0.0)
    weights = raised / np.maximum(total, 1e-300)
    counted = visible & made["query_valid"][:, None, None, :, None]
    kept = np.where(counted, logits, 0.0)
    output = np.einsum("bgrqs,bgsd->bgrqd", weights, value)
    weighed = kept * weight[:, None, None, :, None]
    return (logits, output, kept.sum(axis=3), weighed.sum(axis=3)), counted


def check(found, made, given, bounds, causal):
    (logits, output, sums, weighed), counted = defined(made, *given, bounds, causal)
    near = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(found[0][counted], logits[counted], **near)
    real = np.broadcast_to(made["query_valid"][:, None, None, :], output.shape[:4])
    np.testing.assert_allclose(found[1][real], output[real], **near)
    assert not found[1][2][real[2]].any(), "there was nothing to attend to"
    held = np.broadcast_to(made["key_valid"][:, :, None, :], sums.shape)
    np.testing.assert_allclose(found[2][held], sums[held], **near)
    np.testing.assert_allclose(found[3][held], weighed[held], **near)
    assert np.isfinite(found[2]).all()


# What JAX computes of many slots is compiled below.
@pytest.mark.parametrize("slots", [12, pytest.param(300, marks=pytest.mark.thorough("jax"))])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("bounds", BOUNDS)
def test_attention_and_sums_are_those_of_the_definition(library, bounds, mask, slots):
    made, given, causal = records(slots, mask), inputs(slots), mask == "causal"
    arrays = arrays_of(library, made)
    own = computed(arrays, *map(library.from_numpy, given), bounds, causal)
    check([library.to_numpy(x) for x in own], made, given, bounds, causal)
    with force_generic():
        plain = computed(arrays, *map(library.from_numpy, given), bounds, causal)
    check([library.to_numpy(x) for x in plain], made, given, bounds, causal)


@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize("mask", ["all", "causal"])
@pytest.mark.parametrize(
    "bounds", ["both sides", pytest.param("all far", marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize("library", ["torch", "jax"], indirect=True)
def test_compiled_code_computes_the_same(library, bounds, mask, slots):
    made, given, causal = records(slots, mask), inputs(slots), mask == "causal"
    run = library.compile(lambda made, *given: computed(made, *given, bounds, causal))
    arrays = arrays_of(library, made)
    found = run(arrays, *map(library.from_numpy, given))
    check([library.to_numpy(x) for x in found], made, given, bounds, causal)
