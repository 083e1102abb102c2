"""Statistics: closed forms, and the tests behave where the answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from metreg.measure.statistics import compare, describe, permutation_p, person_intervals, resampled_means, smallest_p
from metreg.report.tables import difference_table, jacobian_table, overlap_table, published_row, say_p

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
    """Wilcoxon takes pairs for independent; by person there is one that counts."""
    differences = np.array([0.2 if "a" in pair else 0.0 for pair in SUBJECTS])
    assert permutation_p(differences, SUBJECTS) >= 1 / 16
    many = [(f"s{i}", f"s{j}") for i in range(20) for j in range(20) if i != j]
    assert permutation_p(np.full(len(many), 0.1), many) < 0.001


def test_a_better_method_is_found_and_an_equal_one_is_not() -> None:
    generator = np.random.default_rng(0)
    base = generator.normal(0.5, 0.02, len(SUBJECTS))
    noise = generator.normal(0, 1e-6, len(SUBJECTS))
    found = compare(base, {"worse": base - 0.1, "same": base + noise, "better": base + 0.1}, SUBJECTS)
    assert found["worse"].paper_significant and found["worse"].paper_u == len(base) ** 2
    assert found["worse"].person_p == found["worse"].smallest_p == 1 / 16
    assert (found["worse"].difference, found["worse"].low, found["worse"].high) == pytest.approx((0.1, 0.1, 0.1))
    assert not found["same"].paper_significant and not found["better"].paper_significant
    assert not found["worse"].significant  # four people cannot show it
    assert found["better"].wilcoxon_p > 0.99


def all_pairs(people: int) -> list[tuple[str, str]]:
    """All ordered pairs of so many people."""
    return [(f"s{i}", f"s{j}") for i in range(people) for j in range(people) if i != j]


def simulated(subjects: list[tuple[str, str]], generator: np.random.Generator) -> np.ndarray:
    """Differences without any true one: an effect of the moving person, one of the fixed person, and noise of the pair."""
    people = sorted({name for pair in subjects for name in pair})
    moving = dict(zip(people, generator.normal(size=len(people)), strict=True))
    fixed = {name: 0.5 * moving[name] + generator.normal() for name in people}
    return np.array([moving[a] + fixed[b] + 0.5 * generator.normal() for a, b in subjects])


def test_the_interval_by_person_covers_and_the_one_by_pair_does_not() -> None:
    from scipy import stats

    generator = np.random.default_rng(0)
    subjects = all_pairs(10)
    by_person = 0
    by_pair = 0
    runs = 200
    for _ in range(runs):
        differences = simulated(subjects, generator)
        low, high = person_intervals(differences[:, None], subjects)
        by_person += low[0] <= 0 <= high[0]
        by_pair += stats.ttest_1samp(differences, 0).pvalue > 0.05
    assert 0.90 <= by_person / runs <= 0.99
    assert by_pair / runs < 0.6


def test_the_test_by_person_keeps_its_level_where_people_matter_on_both_sides() -> None:
    generator = np.random.default_rng(1)
    subjects = all_pairs(8)
    found = [permutation_p(simulated(subjects, generator), subjects) for _ in range(400)]
    assert np.mean(np.array(found) < 0.05) < 0.08  # flips of one side alone: 0.15


def test_a_pair_counts_by_the_product_of_its_people() -> None:
    """Of three people, draws that leave out one of them have the mean of the pair of the others."""
    subjects = [("a", "b"), ("b", "c"), ("c", "a")]
    values = np.array([1.0, 2.0, 4.0])
    found = set(np.round(resampled_means(values[:, None], subjects)[:, 0], 6))
    assert found == {1.0, 2.0, 4.0, round(7 / 3, 6)}
    same = resampled_means(np.array([[1.0], [2.0]]), [("a", "a"), ("b", "b")])[:, 0]
    assert set(same) == {1.0, 1.5, 2.0}  # drawn twice, there are two of one


def test_an_atlas_is_in_all_pairs_and_does_not_vary() -> None:
    """One image against many people: the mean's share of each of them is its own difference."""
    subjects = [("atlas", f"s{i}") for i in range(7)]
    differences = np.array([0.1, 0.2, 0.1, 0.3, 0.1, 0.2, 0.1])
    found = compare(differences, {"zero": np.zeros(7)}, subjects)["zero"]
    assert found.people == 7 and found.person_p == found.smallest_p == 1 / 128
    assert found.low is not None and 0 < found.low < found.difference


def test_what_too_few_people_cannot_show_is_said() -> None:
    base = np.linspace(0.5, 0.6, len(SUBJECTS))
    few = overlap_table("", {"a": base, "b": base - 0.1}, compare(base, {"b": base - 0.1}, SUBJECTS), "a")
    assert "With 4 people who vary, a p by person cannot be below 0.0625." in few.markdown()
    assert "as in the paper, unpaired, pairs counted as independent" in few.markdown()
    many = np.linspace(0.5, 0.6, 56)
    enough = difference_table("a", compare(many, {"b": many - 0.1}, all_pairs(8))).markdown()
    assert "cannot be below" not in enough and "| b | +0.1000 | +0.1000 to +0.1000 | 0.0039 |" in enough
    two = compare(base[:2], {"b": base[:2] - 0.1}, [("a", "b"), ("b", "a")])["b"]
    assert two.low is None and two.people == 0 and two.person_p == two.smallest_p == smallest_p(0) == 1


def test_rows_of_the_paper_stand_under_the_paper_s_headers() -> None:
    values = {"low": np.full(3, 0.4), "high": np.array([0.5, 0.6, 0.7])}
    table = overlap_table("", values, compare(values["high"], {"low": values["low"]}, SUBJECTS[:3]))
    row = published_row(["SyN", *["0.5"] * 7, "0.073", "9.0", "no"])
    named = dict(zip(table.header, row, strict=False))
    assert (named["99%"], named["p by person"], named["paper's p"], named["sig?"]) == ("0.5", "-", "0.073", "no")


def test_p_values_are_adjusted_over_all_rows() -> None:
    base = np.linspace(0.5, 0.6, 12)
    alone = compare(base, {"a": base - 0.03}, SUBJECTS)["a"].paper_p
    family = compare(base, {"a": base - 0.03, **{f"n{i}": base for i in range(9)}}, SUBJECTS)["a"].paper_p
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
