"""What is compared, by name: the presets and the controls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from attendre_core.errors import ConfigError
from attendre_core.evaluation.controls import FirstOnly, PinnedMemory, RandomSample
from attendre_core.evaluation.tasks.task import Document, Tokens
from attendre_core.policies import FIFO, LFA, LRA
from attendre_core.presets import OWN_PRESETS, PRESETS, MemoryConfig, preset

__all__ = ["CONTROLS", "PAPER_SIGMAS", "System", "sigmas_of", "system"]

#: Names of the controls; the first three do not depend on the size of a memory.
CONTROLS = ("full", "no-memory", "closed-book", "first-M", "random", "pinned")
#: The c of the initial score with which the paper measured PaLM 2; 1 where nothing is said.
PAPER_SIGMAS = {"LRA-last": 2.0, "LRA-max": 1.5, "LRA-sum": 1.5}
#: Words before the name of a preset, and the setting of its memory that each one changes.
_SETTINGS: dict[str, dict[str, Any]] = {
    "visible-": {"present": "visible"},
    "per-head-": {"per_head": True},
}
#: Words before the name of an LRA or LFA, and the option of the policy that each one sets.
_OPTIONS: dict[str, dict[str, Any]] = {"softmax-": {"score": "softmax"}, "hold-": {"hold": True}}
#: Where the question can stand, and the token that ends it.
_QUESTION = 10


@dataclass(frozen=True)
class System:
    """A memory under a name, and which part of a document is read with it.

    Attributes
    ----------
    name
        As the tables show it.
    memory
        Its memories.
    reads
        ``"all"``, ``"last"`` (only the last chunk), or ``"question"`` (no context at all).
    whole
        The memory is as large as the input, and all queries wait for its end: full attention
        in both directions.
    """

    name: str
    memory: MemoryConfig
    reads: Literal["all", "last", "question"] = "all"
    whole: bool = False

    def tokens(self, document: Document) -> Tokens:
        """Return what is read of a document."""
        if self.reads == "question":
            return document.closed_book
        return document.tokens[-self.memory.chunk :] if self.reads == "last" else document.tokens

    def memory_for(self, length: int) -> MemoryConfig:
        """Return the memories for inputs of up to ``length`` tokens."""
        if not self.whole:
            return self.memory
        return replace(self.memory, kv_size=length + 1, q_size=length, finish="flush")


def system(
    name: str,
    kv_size: int,
    q_size: int = 0,
    *,
    chunk: int = 16,
    top_k: int | None = None,
    sigmas: float | None = 0.0,
) -> System:
    """Make a system by its name.

    Parameters
    ----------
    name
        A preset such as ``"LFA-1e-3"`` or ``"attendre"``, or a control: ``"full"`` attention;
        ``"no-memory"`` (only the last chunk is read), ``"closed-book"`` (only the question),
        ``"first-M"`` (full means full), ``"random"`` (a random sample of all that was read),
        ``"pinned"`` (FIFO that never gives up the question). Before an LRA or LFA,
        ``"softmax-"`` scores by softmax weights and ``"hold-"`` holds new entries until queries
        reach them, as in ``"softmax-hold-LFA-0"``. Before any preset, and before these,
        ``"visible-"`` lets the present chunk be attended before it competes, and ``"per-head-"``
        lets each head choose.
    kv_size, q_size, chunk, top_k
        M, N, S and K.
    sigmas
        c of the initial score; None is the preset's. Our own presets keep theirs in any case.

    Examples
    --------
    >>> system("first-M", 32).memory.policy
    FirstOnly()
    >>> system("LRA-max", 32, 16, sigmas=1.5).memory.policy.initial
    InitialScore(sigmas=1.5)
    """
    if name not in CONTROLS:
        own = None if name in OWN_PRESETS else sigmas
        return System(name, _preset(name, kv_size, q_size, chunk, top_k, own))
    if name in ("first-M", "random"):
        policy = FirstOnly() if name == "first-M" else RandomSample()
        return System(name, MemoryConfig(policy, kv_size, q_size, chunk, top_k))
    if name == "pinned":
        memory = PinnedMemory(FIFO(), kv_size, q_size, chunk, top_k)
        return System(name, replace(memory, pinned=min(_QUESTION, kv_size - 1)))
    plain = MemoryConfig(FIFO(), kv_size=chunk, chunk=chunk)
    if name == "full":
        return System(name, plain, whole=True)
    return System(name, plain, reads="last" if name == "no-memory" else "question")


def _preset(
    name: str, kv_size: int, q_size: int, chunk: int, top_k: int | None, sigmas: float | None
) -> MemoryConfig:
    """Make a preset, with options of its policy in front of its name."""
    plain = name
    settings: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for words, found in ((_SETTINGS, settings), (_OPTIONS, options)):
        for word, change in words.items():
            if plain.startswith(word):
                plain = plain.removeprefix(word)
                found.update(change)
    try:
        config = preset(plain, kv_size, q_size, chunk, top_k, sigmas=sigmas)
    except ConfigError as error:
        if not str(error).startswith("preset:"):
            raise
        raise ConfigError(
            f"system: {name!r} is not known; known are {', '.join((*PRESETS, *CONTROLS))} and "
            "LFA-<decay> for any decay."
        ) from error
    config = replace(config, **settings)
    if not options:
        return config
    if not isinstance(config.policy, LRA | LFA):
        raise ConfigError(
            f"system: {name!r} is not possible, because only LRA and LFA have "
            f"{' and '.join(_OPTIONS)}."
        )
    return replace(config, policy=replace(config.policy, **options))


def sigmas_of(name: str, sigmas: float | Literal["paper"], *, model: str = "prefix-lm") -> float:
    """Return the c of a system; ``"paper"`` is the one that the paper used for such a model.

    Examples
    --------
    >>> sigmas_of("LRA-last", "paper"), sigmas_of("LRA-last", "paper", model="encoder-decoder")
    (2.0, 1.0)
    """
    if sigmas != "paper":
        return sigmas
    return PAPER_SIGMAS.get(name, 1.0) if model == "prefix-lm" else 1.0
