"""Seeded mistakes in the policies of other papers that read weights and values."""

from __future__ import annotations

from mutant import Mutant

HOME = "attendre_core/policies/published"
VIEW = "attendre_core/policies/view.py"
WEIGHTS = "memory/test_oracle.py::test_policies_that_read_weights_equal_oracle"
GARBAGE = "policies/test_laws.py::test_contents_of_padding_change_nothing"

WEIGHT_MUTANTS = (
    Mutant(
        "ValueNorm keeps the shortest values",
        f"{HOME}/value_norm.py",
        "return decided(norms(",
        "return -decided(norms(",
        f"{WEIGHTS}[generic-value-norm]",
    ),
    Mutant(
        "norms are squared",
        f"{HOME}/parts.py",
        "return xp.sqrt(xp.sum(x * x, axis=-1, dtype=x.dtype))",
        "return xp.sum(x * x, axis=-1, dtype=x.dtype)",
        f"{WEIGHTS}[generic-h2o-vlen]",
    ),
    Mutant(
        "H2O weighs values after the heads have met",
        VIEW,
        "pooled = pooled * times[:, :, None, :]",
        "pooled = pooled * self._xp.mean(times, axis=1, keepdims=True)[:, :, None, :]",
        f"{WEIGHTS}[generic-h2o-vlen-shared]",
    ),
    Mutant(
        "a window takes the first queries",
        VIEW,
        "axis=-1)[:, -count:]",
        "axis=-1)[:, :count]",
        f"{WEIGHTS}[generic-snapkv]",
    ),
    Mutant(
        "neighbours are those in the next slots",
        f"{HOME}/parts.py",
        "order = xp.argsort(arrival, axis=-1)",
        "order = xp.argsort(xp.zeros_like(arrival), axis=-1, stable=True)",
        f"{WEIGHTS}[generic-snapkv]",
    ),
    Mutant(
        "neighbours are the nearest that are left",
        f"{HOME}/parts.py",
        "near = xp.abs(when[..., step : step + slots] - arrival) <= reach",
        "near = when[..., step : step + slots] < _NEVER",
        f"{WEIGHTS}[generic-snapkv]",
    ),
    Mutant(
        "neighbours are not put back into their slots",
        f"{HOME}/parts.py",
        "return xp.take_along_axis(total, xp.argsort(order, axis=-1), axis=-1)",
        "return total",
        f"{WEIGHTS}[generic-snapkv-heads]",
    ),
    Mutant(
        "Defensive has no floor",
        f"{HOME}/defensive.py",
        "score = xp.maximum(most, ",
        "score = xp.maximum(most, 0 * ",
        f"{WEIGHTS}[generic-defensive]",
    ),
    Mutant(
        "Defensive counts empty slots in the mean",
        f"{HOME}/defensive.py",
        "count = count_true(view.seen, axis=-1)[..., None]",
        "count = count_true(view.seen | ~view.seen, axis=-1)[..., None]",
        f"{WEIGHTS}[generic-defensive-heads]",
    ),
    Mutant(
        "Defensive averages over heads",
        f"{HOME}/defensive.py",
        'heads="max"',
        'heads="mean"',
        f"{WEIGHTS}[generic-defensive-visible]",
    ),
    Mutant(
        "Salience does not decay",
        f"{HOME}/salience.py",
        "past = stored.score * attention.along_slots(xp.exp(self.decay * age))",
        "past = stored.score",
        f"{WEIGHTS}[generic-salience-visible]",
    ),
    Mutant(
        "Salience forgets what was gained",
        f"{HOME}/salience.py",
        "return past + peak + self.share * all_peaks",
        "return peak + self.share * all_peaks",
        f"{WEIGHTS}[generic-salience]",
    ),
    Mutant(
        "Salience prefers keys like the others",
        f"{HOME}/salience.py",
        "far = 1.0 + decided(",
        "far = 1.0 - decided(",
        f"{WEIGHTS}[generic-salience-heads]",
    ),
    Mutant(
        "DropKV forgets that the others share the weight",
        f"{HOME}/dropkv.py",
        "moved = (minor / (1 - minor)) ** 2",
        "moved = minor**2",
        f"{WEIGHTS}[generic-dropkv]",
    ),
    Mutant(
        "DropKV compares a major entry with the whole output",
        f"{HOME}/dropkv.py",
        "rest = ops.mix(minor, value) / ",
        "rest = ops.mix(weights, value) / ",
        f"{WEIGHTS}[generic-dropkv-heads]",
    ),
    Mutant(
        "values in empty slots are read",
        f"{HOME}/parts.py",
        "return xp.where(flags, x, xp.zeros_like(x))",
        "return x",
        GARBAGE,
    ),
)
