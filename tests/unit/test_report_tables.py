"""Tables, figures and derived quantities on small frames."""

from __future__ import annotations

import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from fedlib import report
from fedlib.errors import InputError
from fedlib.experiments import settings
from fedlib.report import departure, summaries


@pytest.fixture
def frame() -> pd.DataFrame:
    rows = [
        (seed, round, method, value)
        for seed in (0, 1, 2)
        for round in (1, 2, 3, 4)
        for method, value in (("a", round / 10 + seed / 100), ("b", 0.5))
    ]
    return pd.DataFrame(rows, columns=["seed", "round", "method", "value"])


def test_the_spread_in_a_table_is_over_seeds_not_over_rounds(frame: pd.DataFrame) -> None:
    table = report.mean_sd(frame.assign(metric="f1"), by="method", columns="metric")
    assert table.loc["a", "f1"] == "0.260 ± 0.010"
    assert table.loc["b", "f1"] == "0.500 ± 0.000"


def test_one_seed_has_no_spread_and_an_empty_frame_gives_an_empty_table(frame: pd.DataFrame) -> None:
    one = report.mean_sd(frame[frame["seed"] == 0], by="method", digits=2, name="f1")
    assert one.loc["a", "f1"] == "0.25"
    assert report.mean_sd(frame.iloc[:0], by="method").empty


def test_a_shown_table_has_its_caption_order_and_alignment(frame: pd.DataFrame) -> None:
    table = report.mean_sd(frame.assign(metric="f1"), by="method", columns="metric")
    html = report.show(
        table, "What to see.", order=["b", "a", "absent"], names={"method": "readout"}
    ).to_html()
    assert "<caption>What to see.</caption>" in html
    assert html.index(">b<") < html.index(">a<")
    assert "absent" not in html
    assert "readout" in html
    assert html == report.show(table, "What to see.", order=["b", "a"], names={"method": "readout"}).to_html()


def test_the_scale_of_a_result_names_data_kind_profile_and_seeds() -> None:
    assert report.scale(settings.load("mpt", "quick")) == "digits (real), profile quick, 3 seeds"
    assert report.scale(settings.load("mpt", "smoke")).endswith("profile smoke, 1 seed")
    config = settings.load("mpt", "quick")
    both = report.scale(config, *(config.for_task(task) for task in ("fine", "coarse")))
    assert both == "digits (real); roadworld:fine, roadworld:coarse (surrogate), profile quick, 3 seeds"


def test_derived_quantities_agree_with_a_count_by_hand(frame: pd.DataFrame) -> None:
    assert set(summaries.last_rounds(frame, 2)["round"]) == {3, 4}
    with pytest.raises(InputError, match="count is 0"):
        summaries.last_rounds(frame, 0)
    reached = summaries.rounds_to(frame, 0.31, by="method").set_index(["method", "seed"])["value"]
    assert reached.to_dict() == {
        ("a", 0): 4, ("a", 1): 3, ("a", 2): 3, ("b", 0): 1, ("b", 1): 1, ("b", 2): 1
    }  # fmt: skip
    steady = summaries.unsteadiness(frame, by=["method"]).set_index(["method", "seed"])["value"]
    assert steady["b", 0] == 0
    assert steady["a", 0] == pytest.approx(np.std([0.3, 0.4], ddof=1))


def test_kilobytes_of_a_client_are_a_mean_over_messages() -> None:
    rows = [
        (1, "up", "weights", 2, 4000),
        (2, "up", "weights", 2, 4000),
        (1, "down", "weights", 2, 2000),
        (1, "up", "masks", 0, 0),
    ]
    ledger = pd.DataFrame(rows, columns=["round", "direction", "kind", "messages", "bytes"])
    table = summaries.client_kilobytes(ledger)
    assert table.loc["weights", "up"] == 2.0
    assert table.loc["weights", "down"] == 1.0
    assert "masks" not in table.index


@pytest.fixture
def results() -> pd.DataFrame:
    rows = []
    for seed in (0, 1):
        for fraction in (0.1, 0.02):
            for round in range(1, 40):
                phase = "after" if round > 5 else "before"
                ours = ("remaining", 0.9 - fraction) if phase == "after" else ("ncm", 0.9)
                for condition, readout, value in (
                    ("no-departure", "ncm", 0.9),
                    ("departure", *ours),
                    ("departure", "head", 0.3),
                ):
                    for metric in ("rare_f1", "accuracy", "rare_recall"):
                        rows.append((seed, round, condition, 8, fraction, phase, readout, metric, value))
    conditions = ["seed", "round", "condition", "rare_class", "remaining", "phase", "readout"]
    return pd.DataFrame(rows, columns=[*conditions, "metric", "value"])


def test_the_loss_after_a_departure_is_paired_and_ordered_by_fraction(results: pd.DataFrame) -> None:
    loss = departure.loss_after_departure(results)
    assert list(loss["left"].cat.categories) == ["2 % remain", "10 % remain"]
    by_left = loss.groupby("left", observed=True)["value"].mean()
    assert by_left["2 % remain"] == pytest.approx(0.02)
    assert by_left["10 % remain"] == pytest.approx(0.1)
    late = results.copy()
    late.loc[late["round"] > 30, "value"] = 0.0
    pd.testing.assert_frame_equal(departure.loss_after_departure(late), loss)


def test_curves_of_a_departure_are_named(results: pd.DataFrame) -> None:
    curves = departure.rare_f1_curves(results)
    assert set(curves["curve"]) <= set(departure.CURVES)
    assert set(departure.accuracy_and_recall(results)["curve"]) == {
        "head: accuracy, all classes",
        "head: recall, rare class",
        "prototypes: accuracy, all classes",
        "prototypes: recall, rare class",
    }


def test_figures_have_title_labels_legend_and_an_opaque_background(results: pd.DataFrame) -> None:
    curves = departure.rare_f1_curves(results)
    order = ["no departure: ncm", "remaining"]
    loss = departure.loss_after_departure(results)
    drawn = [
        report.curves(
            curves, hue="curve", column="left", ylabel="F1", title="T", order=order, events={"departure": 5.5}
        ),
        report.bars(loss, x="rare_class", hue="left", xlabel="class", ylabel="loss", title="T"),
        report.heat_map(pd.DataFrame({"a": [1, 2]}), label="images", title="T"),
    ]
    for figure in drawn:
        assert figure.get_suptitle() == "T"
        assert figure.get_facecolor() == (1.0, 1.0, 1.0, 1.0)
    assert [axis.get_title() for axis in drawn[0].axes] == ["2 % remain", "10 % remain"]
    assert {text.get_text() for text in drawn[0].legends[0].get_texts()} == {"no departure: ncm", "remaining"}
    styles = {line.get_linestyle() for line in drawn[0].axes[0].get_lines()[:2]}
    assert len(styles) == 2, "lines differ in more than colour"
    assert drawn[1].axes[0].get_ylabel() == "loss"
    plt.close("all")


def test_digits_round_fractions_and_leave_whole_numbers() -> None:
    frame = pd.DataFrame({"share": [0.123456], "count": [7]}, index=pd.Index(["a"], name="row"))
    text = report.show(frame, "Shares.", digits=2).to_html()
    assert ">0.12<" in text
    assert ">7<" in text


def test_tables_of_one_page_do_not_style_each_other_s_cells() -> None:
    words, numbers = pd.DataFrame({"name": ["b"]}, index=["a"]), pd.DataFrame({"n": [1.0]}, index=["a"])
    first, again, other = (report.show(t, "caption").to_html() for t in (words, words, numbers))
    ids = [set(re.findall(r'id="(T_[^"]+)"', html)) for html in (first, again, other)]
    assert ids[0]
    assert ids[0] == ids[1]
    assert not ids[0] & ids[2]
