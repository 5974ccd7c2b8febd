"""After attention: the policy scores the entries, the memory guards the result."""

from __future__ import annotations

from attendre_core import checks
from attendre_core.backend import backend_of
from attendre_core.errors import NonFiniteError, ShapeError
from attendre_core.memory.attention import Attention
from attendre_core.memory.inserting import stored_of
from attendre_core.memory.state import KeyValueState
from attendre_core.ops.finite import surely_finite
from attendre_core.policies import Policy

__all__ = ["observe"]


def observe(where: str, policy: Policy, state: KeyValueState, view: Attention) -> KeyValueState:
    """Update the scores by what this step's queries did.

    An entry keeps its score when no real query saw it, when the policy holds entries that are
    later than every query so far, and when its new score is not finite.
    """
    xp = backend_of(state.key).xp
    seen = view.seen
    score = policy.observe(stored_of(state), view)
    if score is None:
        score, change = state.score, seen
    else:
        name = type(policy).__name__
        if tuple(score.shape) != tuple(state.score.shape):
            raise ShapeError(
                f"{name}.observe: returned shape {tuple(score.shape)}, expected "
                f"{tuple(state.score.shape)}. Pool over queries and heads."
            )
        change = seen
        if not surely_finite(score):
            finite = xp.isfinite(score)
            if checks.may_read(finite) and bool(xp.any(seen & ~finite)):
                raise NonFiniteError(
                    f"{where}: {name} scored an entry with NaN or infinity, expected finite "
                    "scores. Check the policy, or scale queries and keys down. The state passed "
                    "in is unchanged."
                )
            change = seen & finite
        if getattr(policy, "hold", False):
            change = change & (state.position <= view.along_slots(view.latest))
        score = xp.where(change, xp.astype(score, state.score.dtype, copy=False), state.score)
    return state._replace(score=score, observed=state.observed | change, latest_query=view.latest)
