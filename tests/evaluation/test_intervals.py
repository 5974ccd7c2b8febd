"""Intervals: right on known numbers, and as wide as they should be."""

from __future__ import annotations

import numpy as np
import pytest

from attendre_core.errors import ConfigError
from attendre_core.evaluation.intervals import Interval, difference, mean, share


def flags(right: int, of: int) -> np.ndarray:
    return np.arange(of) < right


class TestShare:
    @pytest.mark.parametrize(
        ("right", "of", "low", "high"),
        # Wilson's interval, worked out by hand with z = 1.959964.
        [(5, 10, 0.23659, 0.76341), (0, 10, 0.0, 0.27753), (160, 160, 0.97656, 1.0)],
    )
    def test_known_values(self, right: int, of: int, low: float, high: float) -> None:
        found = share(flags(right, of))
        assert found.value == right / of
        assert found.low == pytest.approx(low, abs=1e-5)
        assert found.high == pytest.approx(high, abs=1e-5)

    def test_it_covers_the_truth_about_as_often_as_it_says(self) -> None:
        rng = np.random.default_rng(0)
        found = [share(rng.random(80) < 0.3) for _ in range(2000)]
        covered = np.mean([one.low <= 0.3 <= one.high for one in found])
        assert 0.93 <= covered <= 0.97

    @pytest.mark.parametrize("wrong", [np.zeros(0, dtype=bool), np.zeros((2, 2), dtype=bool)])
    def test_nothing_to_count(self, wrong: np.ndarray) -> None:
        with pytest.raises(ConfigError, match="expected \\(items,\\) with at least one"):
            share(wrong)


class TestMean:
    def test_known_values(self) -> None:
        found = mean(np.asarray([1.0] * 20))
        assert found == Interval(1.0, 1.0, 1.0)
        spread = mean(np.random.default_rng(3).normal(5.0, 2.0, 400))
        # The standard error is 0.1.
        assert spread.value - spread.low == pytest.approx(0.196, abs=0.03)
        assert spread.high - spread.value == pytest.approx(0.196, abs=0.03)

    def test_a_difference_is_the_mean_of_the_differences(self) -> None:
        rng = np.random.default_rng(4)
        one, other = rng.random(50), rng.random(50)
        assert difference(one, other) == mean(one - other)


class TestDifference:
    def test_equal_results_differ_by_exactly_nothing(self) -> None:
        found = difference(flags(30, 80), flags(30, 80))
        assert found == Interval(0.0, 0.0, 0.0)
        assert not found.excludes_zero

    def test_pairs_count(self) -> None:
        """The same shares: sure when the same documents differ, unsure when others do."""
        base = flags(40, 100)
        nested = flags(50, 100)
        rng = np.random.default_rng(1)
        mixed = rng.permutation(nested)
        close, far = difference(nested, base), difference(mixed, base)
        assert close.value == pytest.approx(far.value) == 0.1
        assert close.excludes_zero
        assert close.high - close.low < far.high - far.low

    def test_it_turns_around(self) -> None:
        a, b = flags(60, 90), flags(20, 90)
        there, back = difference(a, b), difference(b, a)
        assert there.value == -back.value
        assert there.excludes_zero
        assert back.excludes_zero
        assert there.low == pytest.approx(-back.high, abs=0.02)

    def test_it_covers_the_truth_about_as_often_as_it_says(self) -> None:
        rng = np.random.default_rng(2)
        covered = []
        for seed in range(400):
            hard = rng.random(100)
            first, second = hard < 0.5, hard + 0.2 * rng.random(100) < 0.5
            found = difference(first, second, draws=400, seed=seed)
            covered.append(found.low <= 0.1 <= found.high)
        assert 0.90 <= np.mean(covered) <= 0.99

    def test_different_documents(self) -> None:
        with pytest.raises(ConfigError, match="3 results against 4"):
            difference(flags(1, 3), flags(1, 4))
