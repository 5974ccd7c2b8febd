"""The systems that are compared, by name: memories, and the controls that they have to beat.

The controls separate "the memory kept the answer" from "the question survived", "the beginning was
enough" and "any choice would have done".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from attendre_core.errors import ConfigError
from attendre_core.presets import MemoryConfig, canonical, parse, preset

__all__ = [
    "CONTROLS", "ORACLE", "PIECEWISE", "SIZELESS", "System", "label_of", "split_oracle", "system",
]  # fmt: skip

#: The part of an input that is read: pieces are those of `attendre_core.evaluation.piecewise`.
Reads = Literal["all", "last", "question", "first-piece", "pieces", "half-overlap", "windows"]
#: Controls whose memory has no size to vary, and what each of them reads.
_READS: dict[str, Reads] = {
    "full": "all",
    "no-memory": "last",
    "closed-book": "question",
    "truncated": "first-piece",
    "pieces": "pieces",
    "overlapping-pieces": "half-overlap",
    "windows": "windows",
}
SIZELESS = tuple(_READS)
#: What people do with an encoder and a long text; only tasks for encoders have these.
PIECEWISE = SIZELESS[3:]
#: All other controls; ``first-M`` and ``random`` are presets.
CONTROLS = (*SIZELESS[:3], "first-M", "random", "pinned")
_OURS = (*SIZELESS, "pinned")
#: At the end of a name: everything is read with full attention before M entries are kept.
ORACLE = "+oracle"
_ORACLE = re.compile(r"\+\s*oracle\s*(?=[+:]|$)", re.IGNORECASE)


@dataclass(frozen=True)
class System:
    """A named memory, and the part of an input that is read with it.

    Attributes
    ----------
    name
        As shown in tables and results files.
    memory
        The memories of all layers.
    reads
        ``"all"``, ``"last"`` (only the last chunk), ``"question"`` (no context at all), or how an
        encoder reads piece by piece.
    whole
        True for full attention over what is read: nothing is ever evicted.
    oracle
        True if the context is read with full attention, and only then cut down to the memory's
        size; see `attendre_core.evaluation.oracle`.
    """

    name: str
    memory: MemoryConfig
    reads: Reads = "all"
    whole: bool = False
    oracle: bool = False

    def part_of(self, tokens: Any, question: Any) -> Any:
        """Return the part of an input that is read.

        Parameters
        ----------
        tokens
            The input.
        question
            The input without its context.

        Examples
        --------
        >>> system("no-memory", 64, chunk=2).part_of([7, 1, 2, 3, 9], [7, 9])
        [3, 9]
        """
        if self.reads == "question":
            return question
        return tokens[-self.memory.chunk :] if self.reads == "last" else tokens

    def memory_for(self, length: int, *, causal: bool) -> MemoryConfig:
        """Return the memories for inputs of up to ``length`` tokens.

        Full attention is a memory with room for everything; in a model that looks both ways, all
        queries wait for the end of the input.
        """
        memory = self.memory
        if self.whole:
            waiting = 0 if causal else length
            room = max(memory.chunk, length, waiting + 1)
            memory = replace(memory, kv_size=room, q_size=waiting, finish="flush",
                             layer_sizes=(), head_sizes=())  # fmt: skip
        return replace(memory, encoder_outputs=min(memory.encoder_outputs, length))


def system(
    name: str,
    kv_size: int,
    q_size: int = 0,
    *,
    chunk: int = 16,
    top_k: int | None = None,
    pinned: int = 10,
) -> System:
    """Make a system from its name.

    Parameters
    ----------
    name
        As in `attendre_core.preset`, without ``:size`` and ``+wait=``: ``"LFA-1e-3"``,
        ``"LRA-sum+softmax+c=0"``, ``"attendre"``. Or a control: ``"full"`` attention,
        ``"no-memory"`` (only the last chunk is read), ``"closed-book"`` (only the question),
        ``"first-M"`` (the first M entries stay forever), ``"random"`` (a random sample of
        everything read), ``"pinned"`` (FIFO that never evicts the question). Or a name of
        `PIECEWISE`, for encoders. With ``+oracle``, everything is read with full attention before
        M entries are kept.
    kv_size, q_size, chunk
        M, N and S.
    top_k
        K for names without ``+k=``; at most M.
    pinned
        How many positions at the beginning the control ``"pinned"`` keeps; at most three quarters
        of M.

    Examples
    --------
    >>> system("pinned", 32).memory.pin
    ((0, 10),)
    >>> system("lra-max+c=1.5", 32, 16).name
    'LRA-max+c=1.5'
    """
    bounded, oracle = split_oracle(name)
    parsed = parse(bounded, _OURS)
    if parsed.size is not None or parsed.has("wait"):
        raise ConfigError(
            f"system {name!r}: M and N are kv_size and q_size here, expected a name without :size "
            f"and +wait=. Write {label_of(name)!r}."
        )
    label = label_of(name)
    if label in SIZELESS:
        one_chunk = preset(f"MT+chunk={chunk}:{chunk}")
        return System(label, one_chunk, reads=_READS[label], whole=True)
    base = parsed._replace(name="MT") if parsed.name == "pinned" else parsed
    k = None if top_k is None else min(top_k, kv_size)
    memory = preset(str(base.with_defaults(kv_size, wait=q_size, chunk=chunk, k=k)))
    if parsed.name == "pinned":
        memory = replace(memory, pin=((0, max(1, min(pinned, kv_size - kv_size // 4))),))
    if oracle and q_size:
        raise ConfigError(
            f"system {name!r}: q_size is {q_size}, but no query waits in a read with full "
            "attention. Use q_size=0 with +oracle."
        )
    return System(label, memory, oracle=oracle)


def split_oracle(name: str) -> tuple[str, bool]:
    """Return a name without ``+oracle``, and whether it had it.

    Examples
    --------
    >>> split_oracle("LRA-sum+oracle+softmax:64"), split_oracle("AS")
    (('LRA-sum+softmax:64', True), ('AS', False))
    """
    bounded, count = _ORACLE.subn("", name)
    if count > 1:
        raise ConfigError(f"system {name!r}: +oracle is there {count} times. Keep one of them.")
    return bounded, bool(count)


def label_of(name: str) -> str:
    """Return the name of a system as shown in tables and results files.

    It is the canonical name without the size and ``+wait=``, which have columns of their own.

    Examples
    --------
    >>> label_of("lfa-1e-3+wait=8+c=0:64"), label_of("LFA-0+softmax+c=-1+visible")
    ('LFA-1e-3+c=0', 'attendre')
    >>> label_of("h2o+oracle:64")
    'H2O+oracle'
    """
    bounded, oracle = split_oracle(name)
    parsed = parse(bounded, _OURS)
    if oracle:
        if parsed.name in SIZELESS:
            raise ConfigError(
                f"system {name!r}: the control {parsed.name!r} keeps no M entries, so there is no "
                f"oracle of it. Write {parsed.name!r}."
            )
        return label_of(bounded) + ORACLE
    if parsed.name in _OURS:
        if parsed.options or parsed.size is not None:
            raise ConfigError(
                f"system {name!r}: the control {parsed.name!r} has neither options nor a size. "
                f"Write {parsed.name!r}."
            )
        return parsed.name
    full = parse(canonical(name))
    options = tuple(option for option in full.options if not option.startswith("wait="))
    return str(full._replace(options=options))
