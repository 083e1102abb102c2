"""Statistics: closed forms, and the tests behave where the answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from metreg.evaluate.statistics import compare, describe, permutation_p
from metreg.report.tables import jacobian_table, overlap_table, say_p

SUBJECTS = [(a, b) for a in "abcd" for b in "abcd" if a != b]


def test_describe() -> None:
    facts = describe(np.arange(101.0))
    assert facts["mean"] == 50 and facts["p1"] == 1 and facts["p50"] == 50 and facts["p99"] == 99
    assert facts["std"] == pytest.approx(np.sqrt((101**2 - 1) / 12))


def test_the_sign_flips_of_four_subjects_by_hand() -> None:
    """All differences equal: every subject contributes the same, so only the unflipped sum of 16 is as large."""
    assert permutation_p(np.full(len(SUBJECTS), 0.3), SUBJECTS) == 1 / 16
    assert permutation_p(np.full(len(SUBJECTS), -0.3), SUBJECTS) == 1.0
    assert permutation_p(np.zeros(len(SUBJECTS)), SUBJECTS) == 1.0


def test_one_lucky_subject_does_not_make_a_difference_significant() -> None:
    """Wilcoxon takes pairs for independent; by subject there is one that counts."""
    differences = np.array([0.2 if "a" in pair else 0.0 for pair in SUBJECTS])
    assert permutation_p(differences, SUBJECTS) >= 1 / 16
    many = [(f"s{i}", f"s{j}") for i in range(20) for j in range(20) if i != j]
    assert permutation_p(np.full(len(many), 0.1), many) < 0.001


def test_a_better_method_is_found_and_an_equal_one_is_not() -> None:
    generator = np.random.default_rng(0)
    base = generator.normal(0.5, 0.02, len(SUBJECTS))
    noise = generator.normal(0, 1e-6, len(SUBJECTS))
    found = compare(base, {"worse": base - 0.1, "same": base + noise, "better": base + 0.1}, SUBJECTS)
    assert found["worse"].significant and found["worse"].u == len(base) ** 2
    assert found["worse"].difference == pytest.approx(0.1)
    assert not found["same"].significant and not found["better"].significant
    assert found["better"].wilcoxon_p > 0.99


def test_p_values_are_adjusted_over_all_rows() -> None:
    base = np.linspace(0.5, 0.6, 12)
    alone = compare(base, {"a": base - 0.03}, SUBJECTS)["a"].p
    family = compare(base, {"a": base - 0.03, **{f"n{i}": base for i in range(9)}}, SUBJECTS)["a"].p
    assert family == pytest.approx(10 * alone)


def test_tables_mark_the_best_and_print_p_like_the_paper() -> None:
    values = {"low": np.full(3, 0.4), "high": np.array([0.5, 0.6, 0.7])}
    table = overlap_table("", values, compare(values["high"], {"low": values["low"]}, SUBJECTS[:3]))
    assert "| high | **0.600** |" in table.markdown()
    assert r"\textbf{0.600}" in table.latex() and r"1\%" in table.latex()
    assert [say_p(p) for p in (1e-12, 5e-5, 0.0731)] == ["<1e-10", "<0.0001", "0.073"]
    keys = ("mean", "p1", "p5", "p50", "p95", "p99", "log_std")
    rows = [dict.fromkeys(keys, 1.0), dict.fromkeys(keys, 3.0)]
    assert jacobian_table("", {"m": rows}).rows[0][1] == "2.00(1.00)"
