"""Verdicts follow from the numbers: the right word, never more than the run can carry, never a silent success."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.errors import InputError
from fedlib.report import register, verdict
from fedlib.report.measure import estimate
from fedlib.report.register import (
    CONTRADICTED,
    NOT_ATTEMPTED,
    NOT_REPRODUCED,
    REPRODUCED,
    TREND,
    Entry,
    Rule,
)
from fedlib.report.verdict import DataUse, Provenance, Verdict

DIGITS = Provenance(data=(DataUse(name="digits", kind="real"),), profile="quick")
PAPER = Provenance(data=(DataUse(name="nuimages", kind="real"),), profile="paper")


def entry(*rules: dict[str, Any], **fields: Any) -> Entry:
    common = {"id": "MPT-1", "paper": "mpt", "kind": "claim", "where": "here", "statement": "it is better"}
    common |= {"notebook": "mpt/page", "reason": "not built", "data": ("nuimages",)}
    return Entry(
        **(common | fields | {"parts": [{"says": "better", "metric": "f1"} | rule for rule in rules]})
    )


def frame(**methods: list[float]) -> pd.DataFrame:
    """One value per seed for each method."""
    rows = [
        {"seed": seed, "method": method, "metric": "f1", "value": value}
        for method, values in methods.items()
        for seed, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


def curves(values: dict[str, dict[int, list[float]]]) -> pd.DataFrame:
    """Values over rounds 1, 2, ... for each method and seed."""
    rows = [
        {"seed": seed, "method": method, "round": number, "metric": "f1", "value": value}
        for method, seeds in values.items()
        for seed, curve in seeds.items()
        for number, value in enumerate(curve, start=1)
    ]
    return pd.DataFrame(rows)


BETTER = {"ours": {"method": "mpt"}, "against": {"method": "ncm"}, "direction": ">"}
VALUE = {"ours": {"method": "mpt"}, "value": 0.5, "tolerance": 0.02}


def word(rule: dict[str, Any], results: pd.DataFrame, provenance: Provenance = DIGITS) -> str:
    return verdict.judge(entry(rule), results, provenance).word


def test_the_interval_is_the_t_interval_of_the_mean() -> None:
    found = estimate([1.0, 2.0, 4.0])
    # t quantile 4.302653 for two degrees of freedom; standard error sqrt(7/3)/sqrt(3)
    assert found.low == pytest.approx(7 / 3 - 4.302652729911275 * np.sqrt(7 / 3) / np.sqrt(3))
    assert found.high == pytest.approx(7 / 3 + 4.302652729911275 * np.sqrt(7 / 3) / np.sqrt(3))
    assert estimate([0.5]).sd is None


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([0.9, 0.91, 0.92], "0.910 ± 0.010"),
        ([0.0, 0.0, 0.0], "0.000 ± 0.000"),
        ([0.0012, 0.0012], "0.00120 ± 0.00000"),
        ([-3.0, -3.0], "−3.00 ± 0.00"),
        ([86.79], "86.79"),
        ([14000.0, 14002.0], "14,001 ± 1"),
    ],
)
def test_numbers_are_printed_with_decimals_that_suit_their_size(values: list[float], text: str) -> None:
    assert verdict.plus_minus(estimate(values)) == text


def test_no_number_is_printed_as_minus_zero() -> None:
    assert verdict.number(-0.0001, 0.5) == "0.000"
    undecided = verdict.judge(
        entry(BETTER | {"direction": "<"}), frame(mpt=[0.9, 0.5, 0.7], ncm=[0.5] * 3), DIGITS
    )
    assert "includes 0: undecided" in undecided.sentence


def test_a_clear_effect_is_a_trend_and_the_opposite_is_not() -> None:
    results = frame(mpt=[0.80, 0.82, 0.81], ncm=[0.60, 0.61, 0.63])
    assert word(BETTER, results) == TREND
    assert word(BETTER | {"direction": "<"}, results) == NOT_REPRODUCED
    opposite = verdict.judge(entry(BETTER | {"direction": "<"}), results, DIGITS)
    assert "the opposite" in opposite.sentence


def test_an_effect_within_the_noise_is_not_reproduced_but_called_undecided() -> None:
    result = verdict.judge(entry(BETTER), frame(mpt=[0.9, 0.5, 0.7], ncm=[0.5, 0.8, 0.6]), DIGITS)
    assert result.word == NOT_REPRODUCED
    assert "includes 0: undecided with 3 seeds" in result.sentence


def test_pairing_by_seed_removes_what_the_seeds_share() -> None:
    # The spread over seeds is ten times the effect, but the effect is the same in each seed.
    results = frame(mpt=[0.31, 0.515, 0.71, 0.915], ncm=[0.30, 0.50, 0.70, 0.90])
    assert word(BETTER, results) == TREND
    shuffled = results.sample(frac=1.0, random_state=0)
    assert verdict.judge(entry(BETTER), shuffled, DIGITS) == verdict.judge(entry(BETTER), results, DIGITS)


def test_the_margin_must_be_exceeded_by_the_whole_interval() -> None:
    results = frame(mpt=[0.75, 0.76, 0.74], ncm=[0.65, 0.65, 0.65])  # 0.10 ± 0.01, interval 0.075 to 0.125
    assert word(BETTER | {"margin": 0.07}, results) == TREND
    assert word(BETTER | {"margin": 0.08}, results) == NOT_REPRODUCED
    exact = frame(mpt=[0.75, 0.75, 0.75], ncm=[0.5, 0.5, 0.5])
    assert word(BETTER | {"margin": 0.25}, exact) == NOT_REPRODUCED
    assert word(BETTER | {"margin": 0.24}, exact) == TREND


def test_equal_means_within_the_margin_with_its_whole_interval() -> None:
    rule = BETTER | {"direction": "~", "margin": 0.05}
    assert word(rule, frame(mpt=[0.70, 0.71, 0.69], ncm=[0.70, 0.70, 0.70])) == TREND
    assert word(rule, frame(mpt=[0.70, 0.75, 0.65], ncm=[0.70, 0.70, 0.70])) == NOT_REPRODUCED
    assert word(rule, frame(mpt=[0.80, 0.80, 0.80], ncm=[0.70, 0.70, 0.70])) == NOT_REPRODUCED


@pytest.mark.parametrize("size", [1.0, 1e6])
def test_rounding_noise_is_no_effect(size: float) -> None:
    noisy = frame(mpt=[size * (0.1 + 0.2)] * 3, ncm=[size * 0.3] * 3)
    for direction in "><":
        assert word(BETTER | {"direction": direction}, noisy) == NOT_REPRODUCED
    assert word(BETTER | {"relative": True}, noisy) == NOT_REPRODUCED
    real = frame(mpt=[size * (0.3 + 1e-9)] * 3, ncm=[size * 0.3] * 3)
    assert word(BETTER, real) == TREND
    constant = curves({"mpt": {seed: [size * 0.1] * 7 for seed in range(3)}})
    slope = {"ours": {"method": "mpt"}, "statistic": "slope"}
    assert [word(slope | {"direction": d}, constant) for d in "><"] == [NOT_REPRODUCED] * 2


def test_an_effect_of_the_margin_and_rounding_noise_does_not_exceed_it() -> None:
    results = frame(mpt=[0.8] * 3, ncm=[0.5] * 3)
    assert 0.8 - 0.5 > 0.3
    assert word(BETTER | {"margin": 0.3}, results) == NOT_REPRODUCED
    assert (
        word(BETTER | {"direction": "<", "margin": 0.3}, frame(mpt=[0.5] * 3, ncm=[0.8] * 3))
        == NOT_REPRODUCED
    )
    assert word(BETTER | {"direction": "~", "margin": 0.3}, results) == NOT_REPRODUCED


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 1), min_size=3, max_size=6),
    st.lists(st.floats(0, 1), min_size=6, max_size=6),
    st.floats(0, 0.5),
)
def test_reversing_the_direction_never_makes_both_true(
    ours: list[float], other: list[float], margin: float
) -> None:
    results = frame(mpt=ours, ncm=other[: len(ours)])
    words = [word(BETTER | {"direction": d, "margin": margin}, results) for d in "><"]
    assert words.count(TREND) <= 1
    swapped = frame(ncm=ours, mpt=other[: len(ours)])
    assert [word(BETTER | {"direction": d, "margin": margin}, swapped) for d in "<>"] == words


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 1.0), st.floats(0.0, 10.0))
def test_more_noise_never_turns_a_failure_into_a_trend(effect: float, noise: float) -> None:
    base = np.array([0.0, 0.1, 0.2, 0.3])
    wave = np.array([1.0, -1.0, 1.0, -1.0])

    def judged(scale: float) -> bool:
        ours = list(base + effect + scale * wave)
        return word(BETTER, frame(mpt=ours, ncm=list(base))) == TREND

    assert judged(0.0)
    assert judged(noise) or not judged(2 * noise + 1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["smoke", "quick", "overnight", "paper"]),
    st.sampled_from(["real", "surrogate"]),
    st.sampled_from(["digits", "nuimages"]),
    st.sampled_from([(), ("rounds",)]),
)
def test_a_value_counts_only_on_the_papers_data_with_its_profile_unchanged(
    profile: str, kind: str, name: str, changed: tuple[str, ...]
) -> None:
    origin = Provenance(data=(DataUse(name=name, kind=kind),), profile=profile, changed=changed)
    results = frame(mpt=[0.5, 0.5, 0.5], ncm=[0.1, 0.2, 0.3])
    full = (profile, kind, name, changed) == ("paper", "real", "nuimages", ())
    for rule in (VALUE, VALUE | {"direction": ">"}, BETTER):
        assert (word(rule, results, origin) == REPRODUCED) == full


def test_one_foreign_data_set_among_the_papers_is_not_the_papers_data() -> None:
    mixed = PAPER.model_copy(update={"data": (*PAPER.data, DataUse(name="digits", kind="real"))})
    assert word(VALUE, frame(mpt=[0.5, 0.5, 0.5]), mixed) == NOT_ATTEMPTED


def test_a_value_at_the_tolerance_is_within_it() -> None:
    assert word(VALUE, frame(mpt=[0.52, 0.52, 0.52]), PAPER) == REPRODUCED
    assert word(VALUE, frame(mpt=[0.5201, 0.5201, 0.5201]), PAPER) == NOT_REPRODUCED
    result = verdict.judge(entry(VALUE), frame(mpt=[0.6, 0.6, 0.6]), PAPER)
    assert result.parts[0].gap == pytest.approx(0.1)
    assert "0.600 against the paper's 0.500, outside the tolerance of 0.02" in result.sentence


def test_the_right_direction_with_the_wrong_value_is_not_reproduced_at_paper_scale() -> None:
    rule = BETTER | {"value": 8.1, "tolerance": 2.0, "factor": 100}
    results = frame(mpt=[0.70, 0.71, 0.69], ncm=[0.50, 0.51, 0.49])
    assert word(rule, results, PAPER) == NOT_REPRODUCED
    assert word(rule, results) == TREND
    assert word(rule, frame(mpt=[0.59, 0.60, 0.58], ncm=[0.50, 0.51, 0.49]), PAPER) == REPRODUCED


def test_smoke_runs_carry_no_verdict() -> None:
    smoke = DIGITS.model_copy(update={"profile": "smoke"})
    result = verdict.judge(entry(BETTER), frame(mpt=[0.8, 0.8, 0.8], ncm=[0.1, 0.1, 0.1]), smoke)
    assert (result.word, result.sentence) == (NOT_ATTEMPTED, "profile smoke only shows that the page runs")


@pytest.mark.parametrize("seeds", [1, 2])
def test_too_few_seeds_are_not_attempted(seeds: int) -> None:
    result = verdict.judge(entry(BETTER), frame(mpt=[0.9] * seeds, ncm=[0.1] * seeds), DIGITS)
    assert result.word == NOT_ATTEMPTED
    assert f"too few seeds: {seeds}" in result.sentence
    assert not result.parts


def test_one_repetition_is_enough_without_randomness_and_all_must_agree() -> None:
    rule = BETTER | {"deterministic": True}
    assert word(rule, frame(mpt=[20.0], ncm=[10.0])) == TREND
    assert word(rule, frame(mpt=[20.0, 10.0], ncm=[10.0, 10.0])) == NOT_REPRODUCED


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_not_attempted(bad: float) -> None:
    result = verdict.judge(entry(BETTER), frame(mpt=[0.9, bad, 0.9], ncm=[0.1, 0.1, 0.1]), DIGITS)
    assert (result.word, result.sentence) == (NOT_ATTEMPTED, "some results are not finite numbers")


def test_a_relative_difference_to_zero_is_not_attempted() -> None:
    rule = BETTER | {"relative": True}
    assert word(rule, frame(mpt=[3.0, 3.1, 3.2], ncm=[1.0, 1.0, 1.0])) == TREND
    assert word(rule, frame(mpt=[3.0, 3.1, 3.2], ncm=[0.0, 1.0, 1.0])) == NOT_ATTEMPTED


def with_column(name: str, values: list[Any]) -> pd.DataFrame:
    return frame(mpt=[0.8] * 3, ncm=[0.1] * 3).assign(**{name: values})


@pytest.mark.parametrize(
    ("rule", "results", "message"),
    [
        ({"metric": "f2"}, with_column("x", [0] * 6), "no results with metric = f2.*metric is f1 there"),
        ({"ours": {"method": "lite"}}, with_column("x", [0] * 6), "method = lite.*method is mpt, ncm there"),
        ({"where": {"phase": "after"}}, with_column("x", [0] * 6), "lack the column phase"),
        ({"over": ["task"]}, with_column("x", [0] * 6), "lack the column task"),
        (
            {},
            with_column("remaining", [0.1, 0.2, 0.1, 0.1, 0.1, 0.1]),
            "neither fixes nor averages remaining",
        ),
        ({}, with_column("remaining", [0.1] * 3 + [0.2] * 3), "remaining differs between the two sides"),
        ({}, with_column("round", [1, 1, 1, 2, 2, 2]), "measured in different rounds"),
        ({"rounds": {"last": 2}}, with_column("x", [0] * 6), "counts rounds"),
        ({"statistic": "slope"}, with_column("x", [0] * 6), "slope over rounds"),
        ({}, with_column("seed", [0, 1, 2, 0, 1, 3]), "no pair for seed 2; seed 3"),
        ({}, with_column("seed", [0, 1, 1, 0, 1, 2]), "one measurement twice"),
        ({}, with_column("seed", [0.5, 1, 2, 0, 1, 2]), "seed has type float64"),
        ({}, with_column("value", ["a"] * 6), "value has type"),
        ({}, frame(mpt=[0.8]).drop(columns="seed"), "lack the column seed"),
        ({}, frame(mpt=[0.8]).iloc[:0], "no rows"),
        ({}, [1, 2, 3], "results are list"),
    ],
)
def test_a_frame_that_cannot_answer_is_refused(rule: dict[str, Any], results: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        verdict.judge(entry(BETTER | rule), results, DIGITS)


def test_an_entry_without_a_rule_is_refused_with_how_it_is_judged() -> None:
    results = frame(mpt=[0.8] * 3)
    with pytest.raises(InputError, match="MPT-F4 has no comparison rule; it stands as MPT-8, MPT-9 do"):
        verdict.judge(register.lookup("MPT-F4"), results, DIGITS)
    with pytest.raises(InputError, match="checked from the printed tables"):
        verdict.judge(register.lookup("VCL-8"), results, DIGITS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"profile": "big"}, "profile is 'big'"),
        ({"data": ()}, "names none"),
        ({"data": (DataUse(name="digits", kind="fake"),)}, "kind of digits is 'fake'"),
    ],
)
def test_an_unknown_origin_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        verdict.judge(entry(BETTER), frame(mpt=[0.8] * 3, ncm=[0.1] * 3), DIGITS.model_copy(update=change))


# --- groups, windows, slopes ----------------------------------------------------------------------------------


def tasks(values: dict[str, tuple[float, float]]) -> pd.DataFrame:
    parts = [
        frame(mpt=[ours, ours + 0.01, ours - 0.01], ncm=[other] * 3).assign(task=task)
        for task, (ours, other) in values.items()
    ]
    return pd.concat(parts)


def test_a_claim_over_groups_must_hold_in_the_stated_share_of_them() -> None:
    results = tasks({"a": (0.8, 0.5), "b": (0.7, 0.5), "c": (0.4, 0.5), "d": (0.9, 0.5)})
    rule = BETTER | {"over": ["task"]}
    assert word(rule, results) == NOT_REPRODUCED
    assert word(rule | {"share": 0.75}, results) == TREND
    found = verdict.judge(entry(rule), results, DIGITS)
    assert "no, it holds in 3 of 4 groups (task a, b, c, d); least in task c" in found.sentence
    assert [group.holds for group in found.parts[0].groups] == [True, True, False, True]


def test_the_sentence_names_the_groups_that_were_judged() -> None:
    rule = BETTER | {"over": ["task", "remaining"]}
    both = [tasks({"a": (0.8, 0.5), "b": (0.7, 0.5)}).assign(remaining=share) for share in (0.02, 0.1)]
    all_four = verdict.judge(entry(rule), pd.concat(both), DIGITS).sentence
    assert "yes in 4 of 4 groups (task a, b; remaining 0.02, 0.1)" in all_four
    three = pd.concat([both[0], both[1][both[1].task == "b"]])
    assert "3 of 3 groups (task a, remaining 0.02; task b, remaining 0.02; task b, remaining 0.1)" in (
        verdict.judge(entry(rule), three, DIGITS).sentence
    )
    one = verdict.judge(entry(BETTER | {"over": ["task"]}), tasks({"a": (0.8, 0.5)}), DIGITS)
    assert "least in task a" in one.sentence


def test_ours_must_beat_each_of_the_others() -> None:
    rule = BETTER | {"against": {"method": ["ncm", "ccvr"]}, "against_each": ["method"]}
    results = frame(mpt=[0.8, 0.81, 0.79], ncm=[0.1, 0.1, 0.1], ccvr=[0.7, 0.7, 0.7])
    part = verdict.judge(entry(rule), results, DIGITS).parts[0]
    assert part.holds
    assert part.effect.mean == pytest.approx(0.1)  # the strongest of the others decides
    assert word(rule, frame(mpt=[0.8, 0.81, 0.79], ncm=[0.1] * 3, ccvr=[0.9] * 3)) == NOT_REPRODUCED


def test_results_that_do_not_depend_on_a_column_serve_all_its_groups() -> None:
    results = tasks({"a": (0.8, 0.5), "b": (0.7, 0.5)})
    once = results[~((results.method == "ncm") & (results.task == "b"))].copy()
    once.loc[once.method == "ncm", "task"] = None
    assert verdict.judge(entry(BETTER | {"over": ["task"]}), once, DIGITS).word == TREND


def test_averaging_over_a_column_has_to_be_asked_for() -> None:
    results = tasks({"a": (0.9, 0.5), "b": (0.45, 0.5)})
    with pytest.raises(InputError, match="neither fixes nor averages task"):
        word(BETTER, results)
    assert word(BETTER | {"pool": ["task"]}, results) == TREND


RISING = {0: [0.1, 0.2, 0.3, 0.4], 1: [0.1, 0.22, 0.3, 0.41], 2: [0.1, 0.19, 0.31, 0.4]}


def test_slopes_and_changes_over_rounds() -> None:
    results = curves({"mpt": RISING})
    slope = {"ours": {"method": "mpt"}, "statistic": "slope", "direction": ">"}
    part = verdict.judge(entry(slope), results, DIGITS).parts[0]
    assert part.holds
    assert part.ours.mean == pytest.approx(0.1, abs=0.005)
    change = {
        "ours": {"method": "mpt"},
        "direction": ">",
        "rounds": {"last": 0.25},
        "minus_rounds": {"first": 0.25},
    }
    assert verdict.judge(entry(change), results, DIGITS).parts[0].effect.mean == pytest.approx(
        0.3033, abs=1e-3
    )
    assert word(change | {"margin": 0.28}, results) == TREND
    assert word(change | {"direction": "<"}, results) == NOT_REPRODUCED
    flat = curves({"mpt": {seed: [0.1] for seed in range(3)}})
    assert word(change, flat) == NOT_ATTEMPTED
    assert word(slope, flat) == NOT_ATTEMPTED


def test_a_change_can_be_compared_with_a_change() -> None:
    flat = {seed: [0.5, 0.5, 0.5, 0.5] for seed in range(3)}
    rule = BETTER | {"rounds": {"last": 1}, "minus_rounds": {"first": 1}}
    assert word(rule, curves({"mpt": RISING, "ncm": flat})) == TREND
    assert word(rule, curves({"mpt": flat, "ncm": RISING})) == NOT_REPRODUCED


SHORT = RISING | {1: RISING[1][:2]}
LAST = BETTER | {"rounds": {"last": 2}}


def test_seeds_with_other_rounds_are_not_averaged_with_the_rest() -> None:
    flat = {seed: [0.1] * len(curve) for seed, curve in SHORT.items()}
    result = verdict.judge(entry(BETTER), curves({"mpt": SHORT, "ncm": flat}), DIGITS)
    assert (result.word, result.sentence) == (
        NOT_ATTEMPTED,
        "'better': round differs between seeds",
    )


def test_a_seed_without_results_in_the_window_is_named_not_dropped() -> None:
    four = {**SHORT, 3: RISING[0]}
    flat = {seed: [0.1] * len(curve) for seed, curve in four.items()}
    result = verdict.judge(entry(LAST), curves({"mpt": four, "ncm": flat}), DIGITS)
    assert (result.word, result.sentence) == (
        NOT_ATTEMPTED,
        "'better': no results of seed 1 in the rounds that count",
    )


def test_one_number_is_not_compared_with_a_mean_over_rounds() -> None:
    results = pd.concat([curves({"mpt": RISING}), frame(ncm=[0.1] * 3)])
    with pytest.raises(InputError, match="the two sides were measured in different rounds"):
        verdict.judge(entry(BETTER), results, DIGITS)


def test_rounds_are_compared_in_each_group_and_chosen_in_each() -> None:
    flat = {seed: [0.1] * 4 for seed in range(3)}
    long, short = curves({"mpt": RISING, "ncm": flat}), curves({"mpt": RISING, "ncm": flat})
    both = pd.concat([long.assign(task="a"), short[short["round"] <= 3].assign(task="b")])
    result = verdict.judge(entry(LAST | {"over": ["task"]}), both, DIGITS)
    assert result.word == TREND
    assert [group.ours.mean for group in result.parts[0].groups] == pytest.approx([0.3533, 0.2533], abs=1e-4)
    # Together both sides have rounds 1 to 4, in task b they differ.
    uneven = both[~((both.task == "b") & (both.method == "ncm") & (both["round"] == 3))]
    with pytest.raises(InputError, match="different rounds"):
        verdict.judge(entry(BETTER | {"over": ["task"]}), uneven, DIGITS)


def test_what_is_averaged_is_the_same_on_both_sides_and_in_all_seeds() -> None:
    rule = BETTER | {"pool": ["task"]}
    results = tasks({"a": (0.9, 0.5), "b": (0.45, 0.5)})
    whole = pd.concat([results.assign(remaining=share) for share in (0.02, 0.1)])
    lone = (whole.task == "b") & (whole.method == "mpt") & (whole.remaining == 0.1)
    with pytest.raises(InputError, match="task differs between the two sides"):
        word(rule | {"over": ["remaining"]}, whole[~lone])


def over_tasks(seeds: dict[str, int], mpt: float = 0.9) -> pd.DataFrame:
    """MPT against re-estimation on tasks that were computed with different numbers of seeds."""
    parts = [frame(mpt=[mpt] * n, ncm=[0.5] * n).assign(task=task) for task, n in seeds.items()]
    noise = np.random.default_rng(0)
    return pd.concat([part.assign(value=part["value"] + noise.normal(0, 0.01, len(part))) for part in parts])


def test_groups_with_too_few_seeds_are_left_out_and_named() -> None:
    """Heavy settings have fewer seeds; the others are judged, and nobody is led to think that all were."""
    rule = entry(BETTER | {"over": ["task"]})
    result = verdict.judge(rule, over_tasks({"a": 3, "b": 3, "c": 1}), DIGITS)
    assert result.word == TREND
    assert "in 2 of 2 groups (task a, b)" in result.sentence
    assert "Left out, with too few seeds: task c." in result.sentence
    assert [group.name for group in result.parts[0].groups] == ["task a", "task b"]
    nothing = verdict.judge(rule, over_tasks({"a": 2, "c": 1}), DIGITS)
    assert nothing.word == NOT_ATTEMPTED
    assert "too few seeds" in nothing.sentence
    whole = verdict.judge(rule, over_tasks({"a": 3, "b": 3}), DIGITS)
    assert "Left out" not in whole.sentence


def test_what_a_rule_compares_with_each_and_the_results_lack_is_named() -> None:
    rule = entry(BETTER | {"against": {"method": ["ncm", "ccvr", "sdc"]}, "against_each": ["method"]})
    results = frame(mpt=[0.9, 0.91, 0.92], ncm=[0.5, 0.5, 0.51])
    result = verdict.judge(rule, results, DIGITS)
    assert result.word == NOT_ATTEMPTED  # better than one of three is not better than all
    assert "Not compared, since the results lack it: method ccvr, sdc." in result.sentence
    again = verdict.judge_sides(rule, [pd.read_csv(io.StringIO(part.table)) for part in result.parts], DIGITS)
    assert (again.word, again.sentence) == (result.word, result.sentence)
    whole = verdict.judge(rule, pd.concat([results, frame(ccvr=[0.5] * 3, sdc=[0.6] * 3)]), DIGITS)
    assert whole.word == TREND
    assert "Not compared" not in whole.sentence
    worse = verdict.judge(rule, pd.concat([results, frame(ccvr=[0.95] * 3)]), DIGITS)
    assert worse.word == NOT_REPRODUCED  # one that is better is enough


def test_the_reason_names_a_group_that_fails_and_not_one_with_a_smaller_difference_that_holds() -> None:
    rule = entry(BETTER | {"over": ["task"]})
    steady = frame(mpt=[0.60, 0.61, 0.62], ncm=[0.5, 0.51, 0.52]).assign(task="steady")
    unsteady = frame(mpt=[0.9, 0.5, 0.7], ncm=[0.2, 0.5, 0.4]).assign(task="unsteady")
    result = verdict.judge(rule, pd.concat([steady, unsteady]), DIGITS)
    assert result.word == NOT_REPRODUCED
    assert "no, it holds in 1 of 2 groups" in result.sentence
    assert "least in task unsteady" in result.sentence
    assert "undecided with 3 seeds" in result.sentence


def test_seeds_that_only_one_side_has_are_no_reason_to_leave_a_group_out() -> None:
    results = over_tasks({"a": 3, "b": 3})
    lone = (results.task == "b") & (results.method == "ncm") & (results.seed > 0)
    with pytest.raises(InputError, match="no pair"):
        word(BETTER | {"over": ["task"]}, results[~lone])


def test_an_average_is_taken_over_what_enough_seeds_share_and_says_what_is_missing() -> None:
    rule = entry(BETTER | {"pool": ["task"]})
    easy, hard = over_tasks({"a": 3}), over_tasks({"b": 1}, mpt=0.1)
    result = verdict.judge(rule, pd.concat([easy, hard]), DIGITS)
    assert result.word == TREND
    assert result.parts[0].ours.mean == pytest.approx(0.9, abs=0.02)  # not mixed with b in one seed alone
    assert "Left out, with too few seeds: task b." in result.sentence
    more = verdict.judge(rule, over_tasks({"a": 5, "b": 3}), DIGITS)
    assert more.parts[0].ours.n == 3
    assert "Left out, with too few seeds: seeds 3, 4, which not all have." in more.sentence
    again = verdict.judge_sides(rule, [pd.read_csv(io.StringIO(part.table)) for part in more.parts], DIGITS)
    assert again.sentence == more.sentence  # a recorded verdict says the same
    few = verdict.judge(rule, over_tasks({"a": 2, "b": 1}), DIGITS)
    assert (few.word, few.sentence) == (NOT_ATTEMPTED, "'better': task differs between seeds")


def test_a_difference_can_be_compared_with_a_difference() -> None:
    rule = {
        "ours": {"method": "mpt", "task": "a"},
        "against": {"method": "mpt", "task": "b"},
        "direction": ">",
    }
    rule |= {"minus": {"method": "ncm"}}
    assert word(rule, tasks({"a": (0.8, 0.3), "b": (0.9, 0.7)})) == TREND
    assert word(rule, tasks({"a": (0.8, 0.7), "b": (0.9, 0.4)})) == NOT_REPRODUCED


def test_a_whole_number_in_a_filter_finds_a_decimal_column_and_words_do_not() -> None:
    results = with_column("level", [0.0] * 6)
    assert word(BETTER | {"where": {"level": 0}}, results) == TREND
    with pytest.raises(InputError, match="level = low"):
        word(BETTER | {"where": {"level": "low"}}, results)
    flags = with_column("holdout", [True] * 6)
    assert word(BETTER | {"where": {"holdout": True}}, flags) == TREND
    with pytest.raises(InputError, match="holdout = 1"):
        word(BETTER | {"where": {"holdout": 1}}, flags)


# --- entries of several parts, standings -----------------------------------------------------------------------


def test_all_parts_must_hold() -> None:
    results = frame(mpt=[0.8, 0.81, 0.79], ncm=[0.5] * 3, frozen=[0.9] * 3)
    second = BETTER | {"says": "also", "against": {"method": "frozen"}}
    result = verdict.judge(entry(BETTER, second), results, DIGITS)
    assert [part.holds for part in result.parts] == [True, False]
    assert result.word == NOT_REPRODUCED
    assert "Also: no" in result.sentence
    assert "Better" not in result.sentence


def test_what_the_paper_contradicts_stays_contradicted_whatever_we_measure() -> None:
    claim = register.lookup("VCL-9")
    common = {"dataset": "d", "partition": "IID", "method": "vcl"}
    rows = [
        {**common, "seed": seed, "clients": clients, "scope": scope, "metric": metric, "value": value}
        for seed in range(3)
        for clients, value in (("homogeneous", 50.0), ("heterogeneous", 60.0))
        for metric, scope in (("overall_accuracy", "cil"), ("average_accuracy", "taw"))
    ]
    result = verdict.judge(claim, pd.DataFrame(rows), DIGITS)
    assert result.word == CONTRADICTED
    assert all(part.holds for part in result.parts)
    assert verdict.without_run(claim).word == CONTRADICTED


def test_numbers_at_the_edge_are_plain_python() -> None:
    result = verdict.judge(entry(BETTER), frame(mpt=[0.8, 0.81, 0.79], ncm=[0.1] * 3), DIGITS)
    found = result.parts[0].effect.model_dump().values()
    assert all(type(value) in (float, int) for value in found)
    assert Verdict.model_validate_json(result.model_dump_json()) == result


def test_standings_prefer_the_run_nearest_to_the_paper() -> None:
    def judged(word: Any, name: str, kind: str, profile: str) -> Verdict:
        origin = Provenance(data=(DataUse(name=name, kind=kind),), profile=profile)
        return Verdict(id="MPT-8", word=word, sentence="s", provenance=origin)

    surrogate = judged(NOT_REPRODUCED, "roadworld", "surrogate", "overnight")
    digits = judged(TREND, "digits", "real", "quick")
    paper = judged(REPRODUCED, "nuimages", "real", "paper")
    empty = judged(NOT_ATTEMPTED, "nuimages", "real", "paper")
    assert verdict.standings([surrogate, digits])["MPT-8"] is digits
    assert verdict.standings([paper, surrogate, digits])["MPT-8"] is paper
    assert verdict.standings([empty, surrogate])["MPT-8"] is surrogate
    assert len(verdict.standings([])) == len(register.load().entries)


def test_a_profile_as_it_is_comes_before_a_larger_one_with_other_settings() -> None:
    def judged(profile: str, *changed: str) -> Verdict:
        origin = Provenance(data=(DataUse(name="nuimages", kind="real"),), profile=profile, changed=changed)
        return Verdict(id="MPT-8", word=TREND, sentence="s", provenance=origin)

    whole, changed = judged("overnight"), judged("paper", "rounds")
    for order in ([whole, changed], [changed, whole]):
        assert verdict.standings(order)["MPT-8"] is whole
    assert verdict.standings([whole, judged("paper")])["MPT-8"].provenance == judged("paper").provenance


def test_a_figure_stands_as_its_claims_do() -> None:
    def of(claim: str, word: Any) -> Verdict:
        return Verdict(id=claim, word=word, sentence="s", provenance=DIGITS)

    assert verdict.standings([of("MPT-8", TREND)])["MPT-F4"].sentence == "no verdict yet on MPT-9"
    both = verdict.standings([of("MPT-8", TREND), of("MPT-9", NOT_REPRODUCED)])
    assert (both["MPT-F4"].word, both["MPT-F4"].sentence) == (NOT_REPRODUCED, "as MPT-8, MPT-9")


# --- the claims that the preliminary study judges ---------------------------------------------------------------


def study(*, gap: float = 0.3, decline: float = 0.3, seeds: int = 3, rising: bool = True) -> pd.DataFrame:
    """The results of an imaginary preliminary study with the paper's effects of the given sizes."""
    rounds, last = range(1, 21), 5
    rows = []
    for seed in range(seeds):
        noise = np.random.default_rng(seed)
        for rare in (1, 8):
            for remaining in (0.02, 0.1):
                for condition in ("departure", "no-departure"):
                    for number in rounds:
                        after = number > last
                        gone = after and condition == "departure"
                        part = {
                            "seed": seed,
                            "rare_class": rare,
                            "remaining": remaining,
                            "condition": condition,
                        }
                        part |= {"round": number, "phase": "after" if after else "before"}
                        head = 0.5 + 0.01 * number - (gap / 2 + decline * (number - last) / 15 if gone else 0)
                        ncm = 0.7 + 0.005 * number - (gap if gone else 0)
                        accuracy = 0.6 + (0.01 if rising else -0.01) * number
                        readouts = ["remaining", "frozen", "oracle"] if gone else ["ncm"]
                        for readout, f1, distance in [
                            ("head", head, "none"),
                            *((name, ncm, d) for name in readouts for d in ("mahalanobis", "euclidean")),
                        ]:
                            for metric, value in (
                                ("rare_f1", f1),
                                ("rare_recall", f1),
                                ("accuracy", accuracy),
                            ):
                                row = {**part, "readout": readout, "distance": distance, "metric": metric}
                                rows.append({**row, "value": value + 0.002 * noise.normal()})
    return pd.DataFrame(rows)


PRELIMINARY = ["MPT-13", "MPT-16", "MPT-21", "MPT-22"]


@pytest.fixture(scope="module")
def results() -> pd.DataFrame:
    return study()


@pytest.mark.parametrize("claim", PRELIMINARY)
def test_the_rules_of_the_preliminary_study_see_the_papers_effects(claim: str, results: pd.DataFrame) -> None:
    result = verdict.judge(register.lookup(claim), results, DIGITS)
    assert result.word == TREND, result.sentence


@pytest.mark.parametrize("claim", PRELIMINARY)
def test_the_rules_of_the_preliminary_study_can_fail(claim: str) -> None:
    result = verdict.judge(register.lookup(claim), study(gap=-0.1, decline=-0.2, rising=False), DIGITS)
    assert result.word == NOT_REPRODUCED


def test_one_class_without_a_loss_is_enough_to_fail_for_all_classes(results: pd.DataFrame) -> None:
    spared = results.copy()
    chosen = (spared.rare_class == 8) & (spared.readout == "remaining") & (spared.metric == "rare_f1")
    spared.loc[chosen, "value"] += 0.3
    result = verdict.judge(register.lookup("MPT-16"), spared, DIGITS)
    assert result.word == NOT_REPRODUCED
    assert (
        "no, it holds in 2 of 4 groups (rare_class 1, 8; remaining 0.02, 0.1); least in rare_class 8"
        in result.sentence
    )
    assert verdict.judge(register.lookup("MPT-13"), spared, DIGITS).word == TREND


def test_a_rule_is_one_of_the_register() -> None:
    # Every rule of the register can be measured or refuses with a clear message: no rule is dead on arrival.
    empty = pd.DataFrame({"seed": [0], "metric": ["nothing"], "value": [0.0]})
    for item in register.load().entries:
        for part in item.parts:
            assert isinstance(part, Rule)
        if item.parts:
            with pytest.raises(InputError):
                verdict.judge(item, empty, DIGITS)
