"""What the recommended systems become in a given model."""

from __future__ import annotations

from dataclasses import replace

from attendre_core.policies import LFA, AttentionSink, QuantileScore
from attendre_core.presets.config import MemoryConfig

__all__ = ["adapted"]

#: Models trained on no more positions read best with what is recent.
_SHORT = 1024


def adapted(
    config: MemoryConfig, *, causal: bool, encoder: bool = False, trained: int | None = None
) -> MemoryConfig:
    """Return what a system with ``adapt`` becomes in a given model; others stay as they are.

    No single system is best in every model; docs/policies.md has the measurements.

    - A causal model trained on at most 1,024 positions, or on at most twice M: what is recent, and
      sinks (``AS+visible``). Beyond its trained length, such a model reads worse with older
      entries that got much attention, above all where the text is unlike its training.
    - An encoder without a decoder: new entries start as high as the highest stored score, with
      sinks. Its output describes every position, so a query's neighbours matter most; a decoder
      asks for single entries, wherever they are. (A start at mu + 4 sigma chooses as well in short
      texts, but every chunk widens the spread that sigma measures: after some 130 chunks the
      scores overflowed.)

    Parameters
    ----------
    config
        The memories.
    causal
        Whether the model attends only backwards.
    encoder
        Whether the model is an encoder that no decoder reads from.
    trained
        How many positions the model was trained on; None if it is not known, or not limited.

    Examples
    --------
    >>> import attendre_core as at
    >>> adapted(at.preset("attendre-causal:128"), causal=True, trained=256).name
    'AS+visible:128'
    >>> adapted(at.preset("attendre-causal:128"), causal=True, trained=8192).name
    'attendre-causal:128'
    """
    if not config.adapt:
        return config
    sinks = min(4, config.kv_size // 4)
    if causal and trained is not None and trained <= max(_SHORT, 2 * config.kv_size):
        recent = AttentionSink(sinks=sinks)
        return replace(
            config, policy=recent, per_head=False, protect_recent=0, sinks=0, adapt=False
        )
    if encoder and isinstance(config.policy, LFA):
        policy = replace(config.policy, initial=QuantileScore(1.0))
        return replace(config, policy=policy, sinks=max(config.sinks, sinks), adapt=False)
    return config
