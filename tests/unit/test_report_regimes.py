"""When tracking helps: regimes in order, gains counted, a sentence on few samples that follows numbers."""

from __future__ import annotations

import pandas as pd
import pytest

from fedlib.report import regimes, seconds

SETTING = {"rare_class": 8, "remaining": 0.02, "samples": 3, "noise": 0.0, "lr": 0.05, "departed": 12}


def gains(*settings: dict, repetitions: int = 3) -> pd.DataFrame:
    """One departure a seed of each setting, gains a little apart."""
    return pd.DataFrame(
        SETTING | {"gain_full_space": 0.0} | setting | {"seed": seed, "gain": setting["gain"] + 0.01 * seed}
        for setting in settings
        for seed in range(repetitions)
    )


WIN = {"q": 1.5, "gain": 0.3}
LOSS = {"q": 0.6, "gain": -0.2, "rare_class": 5, "departed": 1, "lr": 0.1}
MIXED = {"q": 1.0, "gain": -0.01, "rare_class": 3}
MANY = {"q": 0.5, "gain": -0.1, "remaining": 0.4, "samples": 54}


def test_the_sentence_counts_settings_with_few_samples_and_names_those_that_mpt_loses():
    words = regimes.few_samples(gains(WIN, LOSS, MIXED, MANY))
    assert (
        "at most 3 samples that are left is better than MPT in every repetition in 1 of 3 settings" in words
    )
    assert "class 5, departure after round 1, step size 0.1: q 0.60, F1 of MPT −0.190" in words
    assert "worse in every repetition in 1." in words
    assert "below one it is ahead in 6 of 6 departures" in words
    assert "above one it is ahead in 1 of 6 departures" in words


def test_the_sentence_follows_the_numbers_when_mpt_never_loses():
    words = regimes.few_samples(gains(WIN, WIN | {"rare_class": 1}))
    assert "in 0 of 2 settings, worse in every repetition in 2." in words
    assert "below one" not in words


def test_a_setting_with_too_few_repetitions_does_not_count():
    assert "in 0 of 0 settings" in regimes.few_samples(gains(LOSS, repetitions=2))


def test_regimes_sort_late_departures_first_then_by_noise_and_fraction_and_name_what_differs():
    frame = gains(WIN | {"noise": 1.0}, WIN | {"remaining": 0.1}, WIN)
    names = list(regimes.by_regime(frame)["regime"].cat.categories)
    assert names == ["noise 0, 2 % left", "noise 0, 10 % left", "noise 1, 2 % left"]
    frame = gains(LOSS, WIN)
    names = list(regimes.by_regime(frame, left=False)["regime"].cat.categories)
    assert names == [
        "noise 0, departure after round 12, step 0.05",
        "noise 0, departure after round 1, step 0.1",
    ]


def test_the_table_of_gains_counts_departures_in_which_tracking_helped():
    table = regimes.helped(gains(WIN, MANY, MIXED | {"noise": 1.0}))
    assert table["above 0, MPT"].tolist() == ["3 of 3", "0 of 3", "1 of 3"]
    assert table["gain, MPT"].tolist() == ["+0.310", "-0.090", "+0.000"]


def test_rank_correlation_is_taken_within_seeds():
    frame = gains(WIN, MANY, MIXED)
    assert regimes.rank_correlation(frame, "q", "gain")["value"].tolist() == pytest.approx([1.0, 1.0, 1.0])
    assert regimes.rank_correlation(frame[frame["q"] > 0.9], "q", "gain").empty


def test_the_figure_draws_all_regimes():
    figure = regimes.gain_over_ratio(gains(WIN, LOSS), gain="gain", label="gain", title="gain")
    assert len(figure.legends[0].get_texts()) == 2


# --- seconds


def timed() -> pd.DataFrame:
    values = {"client_seconds": 0.2, "server_seconds": 0.01, "extra_seconds": 0.21, "round_seconds": 2.0}
    return pd.DataFrame(
        {"seed": seed, "method": method, "backbone": "cnn3", "metric": metric, "value": value * (1 + seed)}
        for seed in (0, 1)
        for method in ("mpt", "ncm")
        for metric, value in values.items()
    )


def test_seconds_are_printed_in_milliseconds_and_as_a_share_of_the_round():
    table = seconds.milliseconds(timed())
    assert list(table.columns) == ["vehicles", "server", "together", "training of the round"]
    assert table.loc["MPT", "server"] == "15.0 ± 7.1"
    assert seconds.share_of_round(timed(), "mpt", "server_seconds") == pytest.approx(0.005)


def test_scores_are_put_beside_the_methods_that_were_timed():
    scores = pd.DataFrame(
        {"seed": 0, "method": ["mpt", "oracle"], "metric": "rare_f1", "phase": "after", "value": 0.9}
    )
    frame = seconds.beside_scores(timed(), scores)
    assert set(frame["method"]) == {"mpt", "ncm"}
    assert set(frame["phase"]) == {"after"}


def test_the_figure_of_lengths_has_a_line_for_each_form():
    rows = pd.DataFrame(
        {"seed": 0, "d": d, "form": form, "metric": "seconds", "value": d * 1e-5}
        for d in (64, 128) for form in ("round", "ot")
    )  # fmt: skip
    figure = seconds.against_length(rows, order=["round", "ot"], title="time")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["round", "ot"]
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"
