"""Seeded mistakes in the policies of other papers that read keys and queries."""

from __future__ import annotations

from mutant import Mutant

HOME = "attendre_core/policies/published"
KEYS = "memory/test_oracle.py::test_policies_that_read_keys_equal_oracle"

KEY_MUTANTS = (
    Mutant(
        "Knorm keeps the largest keys",
        f"{HOME}/knorm.py",
        "decided(-norms(",
        "decided(norms(",
        f"{KEYS}[knorm]",
    ),
    Mutant(
        "TRAMS takes the sum of absolute numbers",
        f"{HOME}/trams.py",
        "xp.sum(key, axis=-1",
        "xp.sum(xp.abs(key), axis=-1",
        f"{KEYS}[trams]",
    ),
    Mutant(
        "new keys are scored among themselves",
        f"{HOME}/keys.py",
        "xp.concat([stored.valid, new.valid], axis=-1)",
        "xp.concat([stored.valid & ~stored.valid, new.valid], axis=-1)",
        f"{KEYS}[keydiff]",
    ),
    Mutant(
        "KeyDiff does not score stored keys again",
        f"{HOME}/keydiff.py",
        "return decided(unlike(attention.key, stored.valid), stored)",
        "return stored.score",
        f"{KEYS}[keydiff-visible-per-head]",
    ),
    Mutant(
        "empty slots are counted among the keys",
        f"{HOME}/keys.py",
        "ops.count_true(by_head(valid), axis=-1, keepdims=True)",
        "ops.count_true(by_head(valid | ~valid), axis=-1, keepdims=True)",
        f"{KEYS}[r-kv]",
    ),
    Mutant(
        "leverage forgets the ridge",
        f"{HOME}/leverage.py",
        "matrix = xp.matmul(xp.matrix_transpose(key), key) + self.ridge * unit",
        "matrix = xp.matmul(xp.matrix_transpose(key), key) + 0.5 * self.ridge * unit",
        f"{KEYS}[leverage]",
    ),
    Mutant(
        "too few products for the inverse",
        f"{HOME}/leverage.py",
        "math.ceil(math.log2(9.0 *",
        "math.ceil(0.5 * math.log2(9.0 *",
        f"{KEYS}[leverage]",
    ),
    Mutant(
        "LagKV scales by the block itself",
        f"{HOME}/lagkv.py",
        "reference = by_head(stored.valid & latest)",
        "reference = by_head(stored.valid & ~latest)",
        f"{KEYS}[lagkv-visible]",
    ),
    Mutant(
        "LagKV scores before the next block is complete",
        f"{HOME}/lagkv.py",
        "(stored.clock - stored.policy_state >= self.lag)",
        "(stored.clock - stored.policy_state >= 1)",
        f"{KEYS}[lagkv-visible-per-head]",
    ),
    Mutant(
        "LagKV ends a block in a row without queries",
        f"{HOME}/lagkv.py",
        "return some & (",
        "return (some | ~some) & (",
        f"{KEYS}[lagkv-visible]",
    ),
    Mutant(
        "LagKV leaves out the values",
        f"{HOME}/lagkv.py",
        "for x in (attention.key, attention.value)",
        "for x in (attention.key, attention.key)",
        f"{KEYS}[lagkv-visible]",
    ),
    Mutant(
        "R-KV adds the redundancy",
        f"{HOME}/rkv.py",
        "score = self.share * importance - (1.0 - self.share) * redundancy",
        "score = self.share * importance + (1.0 - self.share) * redundancy",
        f"{KEYS}[r-kv]",
    ),
    Mutant(
        "R-KV gives new entries no importance",
        f"{HOME}/rkv.py",
        "score = self.share * mean - ",
        "score = 0.0 * mean - ",
        f"{KEYS}[r-kv]",
    ),
    Mutant(
        "R-KV looks at all queries of a step",
        f"{HOME}/rkv.py",
        "attention.last(self.window)",
        "attention",
        f"{KEYS}[r-kv]",
    ),
    Mutant(
        "neighbours are added where the largest counts",
        f"{HOME}/parts.py",
        'total + there if how == "sum" else xp.maximum(total, there)',
        "total + there",
        f"{KEYS}[r-kv-visible]",
    ),
    Mutant(
        "expected attention counts invalid queries",
        f"{HOME}/expected.py",
        "fresh = ops.count_true(valid, axis=1)",
        "fresh = ops.count_true(valid | ~valid, axis=1)",
        f"{KEYS}[expected]",
    ),
    Mutant(
        "expected attention without the shift of the mean",
        f"{HOME}/expected.py",
        "covariance - step[..., None] * step[..., None, :]",
        "covariance + 0.0 * step[..., None]",
        f"{KEYS}[expected]",
    ),
    Mutant(
        "expected attention leaves out this step's queries",
        f"{HOME}/expected.py",
        "moments = self.remember(stored, attention)",
        "moments = stored.policy_state",
        f"{KEYS}[expected-visible]",
    ),
    Mutant(
        "expected attention leaves out the norms of values",
        f"{HOME}/expected.py",
        "by_head(valid)) * norms(value)",
        "by_head(valid)) + 0.0 * norms(value)",
        f"{KEYS}[expected]",
    ),
    Mutant(
        "Nexus takes the largest weights",
        f"{HOME}/nexus.py",
        "- xp.log(-xp.log(u))",
        "+ 0.0 * u",
        f"{KEYS}[nexus-visible]",
    ),
    Mutant(
        "Nexus adds the first weights to the mean",
        f"{HOME}/nexus.py",
        "past = xp.where(stored.observed, stored.score, nothing)",
        "past = stored.score",
        f"{KEYS}[nexus]",
    ),
)
