"""Every kernel of every library against the plain body of its op, op by op."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from attendre_core import force_generic, numba_kernels, ops
from attendre_core.backend import OPS, Backend, backend
from attendre_core.positions.alibi import alibi_slopes
from attendre_core.tree import tree_leaves

LIBRARIES = ["numpy", "array_api_strict", "torch", "jax"]
Case = tuple[tuple[Any, ...], dict[str, Any]]


def case(*args: Any, **options: Any) -> Case:
    return args, options


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def flags(*shape: int, seed: int = 0, share: float = 0.7) -> np.ndarray:
    return np.random.default_rng(seed).random(shape) < share


def shuffled(*shape: int, seed: int = 0) -> np.ndarray:
    """Different int32 within each row."""
    rows = np.broadcast_to(np.arange(shape[-1], dtype=np.int32), shape)
    return np.random.default_rng(seed).permuted(rows, axis=-1).astype(np.int32)


ODD = np.asarray([0.0, -0.0, np.inf, -np.inf, 1.5, 1.5, -2.0, 3e38], np.float32)
TIED = np.random.default_rng(5).choice([0.0, -0.0, 1.5, -2.0], (3, 20)).astype(np.float32)
CUT = np.asarray([[0.0], [1.5], [-0.0]], np.float32)
EVERY = np.ones((3, 20), dtype=bool)
NOTHING = np.zeros((3, 20), dtype=bool)
SLOTS = shuffled(2, 9, seed=3)[:, :4].astype(np.int64)
WRITE = np.asarray([[True, False, True, True], [False, True, True, False]])


def pairs(slots: int = 9, **changes: Any) -> Any:
    """Two rows of queries against slots, in the layout of a memory."""
    at_query = np.arange(20, 25, dtype=np.int32) + np.zeros((2, 1, 1, 1), np.int32)
    at_key = shuffled(2, 1, slots, seed=4) * 4
    query, key = normal(2, 2, 3, 5, 8, seed=1), normal(2, 2, slots, 8, seed=2)
    made = {
        "query_position": at_query,
        "key_position": at_key,
        "query_valid": np.asarray([[True] * 5, [True, False, True, True, False]]),
        "key_valid": np.asarray([[[True] * slots], [[True, False, True] * (slots // 3)]]),
        "order": shuffled(2, 1, slots, seed=5),
        "query_place": at_query,
        "key_place": at_key,
        "query": query,
        "key": key,
        "bounds": ((None, None),),
        "causal": False,
    }
    return {**made, **changes}


THREE = ((None, None), (None, -3), (6, None))
#: What each op is called with. Whoever writes a kernel for an op adds what could go wrong in it.
CASES: dict[str, list[Case]] = {
    "add_up": [
        case(normal(3, 20), normal(3, 20, seed=1), np.asarray([0, 5, 2**31 - 1], dtype=np.int32)),
        case(
            np.full((2, 4), 2**24, np.float32),
            np.ones((2, 4), np.float32),
            np.asarray([1, 2], dtype=np.int32),
            np.asarray([3, 4], dtype=np.int32),
        ),
    ],
    "admit": [
        case(normal(3, 2, 8), shuffled(3, 2, 8), normal(3, 2, 5, seed=1), shuffled(3, 2, 5) + 8),
        case(TIED, shuffled(3, 20), TIED[:, ::3], shuffled(3, 7) + 20),
        case(ODD[None], shuffled(1, 8), ODD[None, ::-1], shuffled(1, 8) + 8),
    ],
    "among_top_k": [
        case(TIED, CUT, np.full((3, 1), 1 - 2**31, np.int32), shuffled(3, 20)),
        case(TIED, CUT, np.asarray([[7], [1 - 2**31], [0]], np.int32), shuffled(1, 20)),
    ],
    "approximate_threshold": [
        case(normal(3, 20), flags(3, 20), 4, 12),
        case(TIED, NOTHING, 4, 12),
    ],
    "attend": [
        case(pairs(), normal(2, 2, 9, 8)),
        case(pairs(causal=True), normal(2, 2, 9, 6)),
        case(pairs(bounds=THREE), normal(2, 2, 9, 8)),
        case(pairs(bounds=THREE, causal=True), normal(2, 2, 9, 8)),
        case(pairs(bias=normal(2, 2, 3, 5, 9)), normal(2, 2, 9, 8)),
        case(pairs(near=flags(2, 1, 1, 5, 9)), normal(2, 2, 9, 8)),
        case(pairs(key_valid=np.zeros((2, 1, 9), dtype=bool)), normal(2, 2, 9, 8)),
        case(pairs(300, bounds=THREE), normal(2, 2, 300, 8)),
    ],
    "attend_top_k": [
        case(
            normal(2, 2, 3, 5, 9),
            normal(2, 2, 9, 8),
            flags(2, 1, 1, 5, 9),
            3,
            shuffled(2, 1, 1, 1, 9),
        ),
        case(
            normal(2, 2, 3, 5, 9),
            normal(2, 2, 9, 8),
            flags(2, 1, 1, 1, 9, share=0.1),
            3,
            shuffled(2, 1, 1, 1, 9),
            8,
        ),
    ],
    "attention": [
        case(normal(2, 2, 3, 5, 8), normal(2, 2, 9, 8, seed=1), normal(2, 2, 9, 6, seed=2), mask)
        for mask in (
            None,
            np.ones((1, 1, 1, 1, 9), dtype=bool),
            flags(2, 1, 1, 1, 9),
            flags(2, 1, 1, 5, 9, share=0.1),
            flags(2, 2, 3, 5, 9),
            np.zeros((2, 1, 1, 1, 9), dtype=bool),
        )
    ],
    "bounded": [case(np.concatenate([ODD, [np.nan]]).astype(np.float32), 1e30)],
    "count_evicted": [
        case(
            [shuffled(2), shuffled(2)],
            [flags(*lead, 9), shuffled(*lead, 9)],
            slot,
            [flags(*lead, 4), shuffled(*lead, 4) + 6],
            write,
            np.asarray([5, 7], np.int32),
        )
        for lead, slot, write in (
            ((2,), SLOTS, WRITE),
            ((2, 1), SLOTS[:, None], WRITE[:, None]),
        )
    ],
    "count_true": [
        case(flags(3, 4, 5), axis=-1),
        case(flags(3, 4, 5), axis=(1, 2)),
        case(flags(3, 4, 5), axis=1, keepdims=True),
    ],
    "erf": [case(3 * normal(40)), case(np.zeros((2, 2), np.float32))],
    "fill": [
        case(normal(3, 4), flags(3, 1), 7.0),
        case(normal(3, 4), np.zeros((3, 4), dtype=bool), 7.0),
        case(normal(3, 4), flags(3, 4), float("nan")),
    ],
    "finite_entries": [
        case(normal(3, 4, 2, 2), (0, 1)),
        case(np.where(flags(3, 4, 2, share=0.9), normal(3, 4, 2), np.nan).astype(np.float32), (0,)),
        case(np.where(flags(3, 4, share=0.9), normal(3, 4), np.inf).astype(np.float32), (0, 1)),
        case(np.full((2, 3), 1e38, np.float32), (0, 1)),  # a sum that is not finite, of what is
        case(normal(3, 4, 2) * np.float32([1, 1e6]), (0, 1), 1e6),
        case(normal(3, 4, 2), (0, 1), 1e6),
    ],
    "displaced": [
        case([normal(2, 9), flags(2, 9)], SLOTS, [normal(2, 4), flags(2, 4)], WRITE, axis=1),
        case([normal(2, 3, 9, 5)], SLOTS, [normal(2, 3, 4, 5, seed=1)], WRITE, axis=2),
        case([normal(2, 9, 2)], SLOTS, [normal(2, 4, 2, seed=1)], WRITE < 2, axis=1),
        case([normal(2, 3, 9, 2)], SLOTS, [normal(2, 3, 4, 2, seed=1)], WRITE < 2, axis=2),
        case([normal(2, 9)], SLOTS, [normal(2, 4, seed=1)], WRITE & False, axis=1),
    ],
    "gather_slots": [
        case(normal(2, 9), SLOTS, axis=1),
        case(normal(2, 3, 9, 4), SLOTS, axis=2),
        case(normal(2, 3, 9), shuffled(2, 3, 9)[..., :4].astype(np.int64), axis=2),
        case(normal(2, 3, 9, 4), SLOTS[:1], axis=2),
        case(flags(2, 9), SLOTS, axis=1),
    ],
    "kth_largest": [
        case(normal(3, 20), 4),
        case(TIED, 7),
        case(np.tile(ODD, (2, 1)), 1),
        case(TIED, 20),
    ],
    "linear": [
        case(normal(2, 3, 4), normal(5, 4, seed=1)),
        case(normal(2, 3, 4), normal(5, 4, seed=1), normal(5, seed=2)),
    ],
    "logits": [
        case(pairs()),
        case(pairs(bounds=THREE)),
        case(pairs(bounds=THREE, bias=normal(2, 2, 3, 5, 9))),
    ],
    "levelled": [
        case(normal(3, 20) + 9e6, normal(3, 20, seed=1), flags(3, 20)),
        case(normal(3, 20), normal(3, 20, seed=1), NOTHING),
    ],
    "lowest": [
        case(normal(3, 20), shuffled(3, 20), 3),
        case(TIED, shuffled(3, 20), 20),
        case(np.tile(ODD, (3, 1)), shuffled(3, 8), 5),
        case(None, shuffled(3, 20) - 7, 9),
        case(normal(2, 2, 6), shuffled(2, 2, 6), 1),
    ],
    "masked_softmax": [
        case(normal(3, 20), None),
        case(normal(3, 20), flags(3, 20)),
        case(np.where(flags(3, 20), normal(3, 20), np.nan).astype(np.float32), flags(3, 20)),
        case(100 * normal(3, 20), NOTHING),
        case(normal(3, 20), flags(3, 1, share=0.5)),
    ],
    "mean_less_deviations": [
        case(normal(3, 20), EVERY, 1.0),
        case(normal(3, 2, 20), flags(3, 2, 20), 1.5),
        case(np.full((2, 20), 0.1, np.float32), EVERY[:2], 1.0),
        case(TIED, EVERY, 0.0),
        case(normal(3, 20), NOTHING, 1.0),
        case(np.asarray([[1e6, 1e6 + 1]], np.float32), EVERY[:1, :2], 1.0),
    ],
    "push_slots": [
        case([normal(2, 5, 3), flags(2, 5)], [normal(2, 3, 3, seed=1), flags(2, 3)], None, order)
        for order in (np.tile(np.arange(8, dtype=np.int32), (2, 1)), shuffled(2, 8))
    ]
    + [
        case(
            [normal(2, 5)],
            [normal(2, 7, seed=1)],
            None,
            np.tile(np.arange(12, dtype=np.int32), (2, 1)),
        ),
        case([normal(2, 5)], [normal(2, 3, seed=1)], normal(2, 8, seed=2), shuffled(2, 8)),
    ],
    "rms_norm": [case(normal(2, 3, 8), normal(8, seed=1), 1e-5)],
    "rotate_at": [
        case(normal(2, 3, 8), shuffled(2, 3), normal(4, seed=1)),
        case(normal(2, 3, 2, 5, 8), -shuffled(2, 1, 1, 5), normal(4, seed=1)),
    ],
    "rotate_halves": [
        case(normal(2, 3, 8), normal(3, 4, seed=1), normal(3, 4, seed=2)),
        case(normal(1, 8), normal(3, 4, seed=1), normal(3, 4, seed=2)),
    ],
    "running_count": [case(flags(3, 20)), case(EVERY)],
    "silu": [case(5 * normal(40))],
    "sum_logits": [
        case(pairs()),
        case(pairs(causal=True), flags(2, 5).astype(np.float32) * 2),
        case(pairs(bounds=THREE), normal(2, 5)),
        case(pairs(bounds=THREE, causal=True)),
        case(pairs(near=flags(2, 1, 1, 5, 9))),
        case(pairs(300, bounds=THREE), normal(2, 5)),
    ],
    "table": [
        case(normal(1), alibi_slopes, 3, dtype=None),
        case(normal(1), alibi_slopes, 5, dtype=None),
        case(normal(1), list, (4, 2), dtype=None),
    ],
    "over_heads": [
        case(normal(2, 3, 2, 9)),
        case(normal(2, 3, 2, 9), "max"),
        case(normal(2, 3, 2, 9), "mean", per_head=True),
        case(flags(2, 3, 2, 5, 9), "any"),
    ],
    "pool_pairs": [
        case(pairs(), "weights"),
        case(pairs(causal=True), "weights", "sum", normal(2, 5)),
        case(pairs(causal=True), "weights", "max", None, normal(2, 2, 9, 8)),
        case(pairs(causal=True), "logits", "mean"),
        case(pairs(near=flags(2, 1, 1, 5, 9)), "logits", "max"),
        case(pairs(bounds=THREE), "weights", "mean"),
        case(pairs(key_valid=np.zeros((2, 1, 9), dtype=bool)), "weights"),
    ],
    "take_rows": [case(normal(7, 3), shuffled(2, 7)), case(normal(7), shuffled(7))],
    "top_k_threshold": [
        case(normal(3, 20), 4, shuffled(1, 20)),
        case(TIED, 5, shuffled(3, 20)),
        case(np.where(flags(3, 20, share=0.2), TIED, -np.inf), 5, shuffled(3, 20)),
    ],
    "take_slots": [
        case([normal(2, 9), flags(2, 9)], SLOTS, axis=1),
        case([normal(2, 3, 9, 5)], SLOTS, axis=2),
        case([normal(2, 3, 9)], shuffled(2, 3, 9).astype(np.int64), axis=2),
        case([normal(2, 9, 2), flags(2, 9)], np.tile(np.arange(9), (2, 1)), axis=1),
    ],
    "write_slots": [
        case(
            [normal(2, 9), flags(2, 9)], SLOTS, [normal(2, 4, seed=1), flags(2, 4)], WRITE, axis=1
        ),
        case([normal(2, 3, 9, 5)], SLOTS, [normal(2, 3, 4, 5, seed=1)], WRITE, axis=2),
        case([normal(2, 3, 9, 5)], SLOTS, [normal(2, 3, 4, 5, seed=1)], WRITE, axis=2, donate=True),
        case([normal(2, 9, 2)], SLOTS, [normal(2, 4, 2, seed=1)], WRITE < 2, axis=1),
        case([normal(2, 9)], SLOTS[:, :1], [normal(2, 1, seed=1)], WRITE[:, :1], axis=1),
        case([normal(2, 9)], SLOTS, [normal(2, 4, seed=1)], WRITE & False, axis=1),
        case([normal(2, 9, 2)], SLOTS[:1], [normal(2, 4, 2, seed=1)], WRITE[:1], axis=1),
        case([normal(2, 9, 2)], SLOTS[:1], [normal(2, 4, 2)], WRITE[:1], axis=1, donate=True),
    ],
}
#: Kernels that decline unless they are asked for.
ON_DEMAND = {
    "jax": {
        *("approximate_threshold", "attend_top_k", "pool_pairs"),
        *("count_true", "finite_entries", "over_heads"),  # inside of head_axis
    },
    "torch": {"over_heads", "pool_pairs"} | {"count_evicted", "rotate_at"},  # without Triton
}


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Backend:
    if request.param != "numpy":
        pytest.importorskip(request.param)
    return backend(request.param)


def stretched(x: Any, at: Any, *, xp: Any) -> Any:
    return x * (1.0 + xp.astype(at, x.dtype) / 64)[..., None]


def built(library: Backend, made: dict[str, Any]) -> ops.Pairs:
    """Make pairs of arrays of a library."""
    arrays = {k: v if isinstance(v, (tuple, bool)) else library.from_numpy(v)
              for k, v in made.items()}  # fmt: skip
    query, key, bounds = arrays.pop("query"), arrays.pop("key"), arrays.pop("bounds")
    rotate = functools.partial(stretched, xp=library.xp)
    terms = [ops.Term(query, key, rotate, arrays["query_place"], arrays["key_place"])]
    for low, high in bounds[1:]:
        fixed = arrays["key_place"][:, :, :1] * 0 + (5 if low is None else -5)
        terms.append(ops.Term(query, key, rotate, None, fixed, low, high))
    return ops.Pairs(**arrays, terms=tuple(terms), memo={})


def on(library: Backend, given: Any) -> Any:
    """Bring arguments to a library; fresh ones each time, for a kernel may write into them."""
    if isinstance(given, dict):
        return built(library, given)
    if isinstance(given, list):
        return [on(library, part) for part in given]
    return library.from_numpy(given.copy()) if isinstance(given, np.ndarray) else given


def counted(name: str, given: Case) -> Any:
    """Tell what of an answer matters: of queries that are real, of slots that hold an entry."""
    if name not in ("attend", "logits", "pool_pairs", "sum_logits"):
        return True
    made = given[0][0]
    real = made["query_valid"][:, None, None, :, None]
    if name == "attend":
        return real
    held = made["key_valid"][:, :, None, :]
    return real & held[:, :, :, None, :] if name == "logits" else held


def agree(name: str, given: Case, found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for mine, plain in zip(found, wanted, strict=True):
        assert mine.shape == plain.shape
        assert mine.dtype.kind == plain.dtype.kind
        if mine.dtype.kind == "f":
            mine, plain = (np.where(counted(name, given), x, 0.0) for x in (mine, plain))
            near = 1e-6 if name == "erf" else 1e-5
            np.testing.assert_allclose(mine, plain, rtol=1e-5, atol=near)
        else:
            assert (mine == plain).all()


def chosen(name: str, given: Case, found: list[Any]) -> Any:
    """Tell who is above a threshold, however it was found."""
    args = given[0]
    order, masked = (args[4], args[0]) if name == "attend_top_k" else (args[2], args[0])
    allowed = args[2] if name == "attend_top_k" else masked > -np.inf
    threshold, oldest = found[-2:]
    return allowed & ((masked > threshold) | ((masked == threshold) & (order >= oldest)))


def compare(name: str, given: Case, found: list[Any], wanted: list[Any]) -> None:
    if name in ("top_k_threshold", "attend_top_k"):
        assert (chosen(name, given, found) == chosen(name, given, wanted)).all()
        found, wanted = found[:-2], wanted[:-2]
    agree(name, given, found, wanted)


def answer(library: Backend, name: str, given: Case, run: Any = None) -> list[Any]:
    """Call an op, or what is passed for it, with arrays of a library."""
    args, options = given
    call = getattr(ops, name) if run is None else run
    with np.errstate(all="ignore"):
        found = call(*(on(library, x) for x in args), **options)
    if found is NotImplemented:
        return [NotImplemented]
    return [np.asarray(library.to_numpy(leaf)) for leaf in tree_leaves(found)]


def test_every_op_has_cases() -> None:
    assert set(CASES) == set(OPS)


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_answers_as_the_plain_body(library: Backend, name: str) -> None:
    kernel, answered = library.kernels.get(name), 0
    for given in CASES[name]:
        own = answer(library, name, given)
        with force_generic():
            plain = answer(library, name, given)
        compare(name, given, own, plain)
        if kernel is not None:
            answered += answer(library, name, given, kernel)[0] is not NotImplemented
    if kernel is not None and name not in ON_DEMAND.get(library.name, ()):
        assert answered, f"{library.name}'s kernel for {name} declined everything"


@pytest.mark.parametrize(
    "home",
    ["attendre_core.eager.numpy_kernels", "attendre_torch.kernels", "attendre_torch.launches"],
)
def test_kernels_behind_machine_code_answer_as_the_plain_body(home: str) -> None:
    """Where Numba is installed its kernels come first; these are for everybody else."""
    module = pytest.importorskip(home, exc_type=ImportError)
    library = backend("torch" if "torch" in home else "numpy")
    for name in module.__all__:
        for given in CASES[name]:
            found = answer(library, name, given, getattr(module, name))
            with force_generic():
                plain = answer(library, name, given)
            if found[0] is not NotImplemented:
                compare(name, given, found, plain)


@pytest.mark.parametrize("name", CASES)
def test_kernels_for_accelerators_answer_as_the_plain_body(name: str) -> None:
    """No value is read where PyTorch treats the CPU like an accelerator."""
    looking = pytest.importorskip("attendre_torch.looking", exc_type=ImportError)
    library = backend("torch")
    for given in CASES[name]:
        with looking.as_on_a_device():
            own = answer(library, name, given)
        with force_generic():
            plain = answer(library, name, given)
        compare(name, given, own, plain)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("library", ["numpy", "torch", "jax"], indirect=True)
def test_a_plain_body_computes_the_same_on_every_library(library: Backend, name: str) -> None:
    pytest.importorskip("array_api_strict")
    for given in CASES[name]:
        with force_generic():
            own, other = (answer(x, name, given) for x in (library, backend("array_api_strict")))
        compare(name, given, own, other)


def numbers_in(library: Backend, given: Any) -> list[Any]:
    """Every array in an argument."""
    if isinstance(given, ops.Pairs):
        terms = [x for term in given.terms for x in (term.plain_query, term.plain_key)]
        given = [*given._replace(terms=(), memo=None), *terms]
    return [library.to_numpy(x) for x in tree_leaves([given]) if hasattr(x, "shape")]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("library", ["numpy", "torch"], indirect=True)
def test_arguments_are_unchanged_unless_donated(library: Backend, name: str) -> None:
    for args, options in CASES[name]:
        if not options.get("donate"):
            given = [on(library, x) for x in args]
            with np.errstate(all="ignore"):
                getattr(ops, name)(*given, **options)
            for after, before in zip(given, (on(library, x) for x in args), strict=True):
                pairs = zip(numbers_in(library, before), numbers_in(library, after), strict=True)
                for one, other in pairs:
                    np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(not numba_kernels.installed(), reason="needs numba")
def test_kernels_in_machine_code_are_among_those_of_numpy_and_torch() -> None:
    for name in numba_kernels.KERNELS:
        assert backend("numpy").kernels[name] is numba_kernels.KERNELS[name]
    pytest.importorskip("torch")
    from attendre_torch import machine_code

    for name in machine_code.__all__:
        assert backend("torch").kernels[name] is getattr(machine_code, name)
