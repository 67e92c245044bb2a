"""Figures of what FedCKA keeps."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedlib.report import masking


def levels() -> pd.DataFrame:
    rows = [
        (mode, level, seed, metric, 0.1 * level + 0.01 * seed)
        for mode, levels in (("threshold", (0.0, 0.9, 1.0)), ("percentage", (0.0, 0.4)))
        for level in levels
        for seed in (0, 1)
        for metric in ("nds", "share")
    ]
    return pd.DataFrame(rows, columns=["masking", "level", "seed", "metric", "value"])


def test_a_level_is_named_by_its_mode_and_a_method_without_one_by_itself() -> None:
    rows = pd.DataFrame(
        {
            "masking": ["threshold", "percentage", "none"],
            "level": [0.9, 0.0, np.nan],
            "method": ["fedcka", "fedcka", "fedavg"],
        }
    )
    assert masking.named(rows).tolist() == ["threshold τ 0.9", "share ρ 0", "fedavg"]


def test_levels_stand_at_equal_distances_with_the_ends_as_lines() -> None:
    ends = pd.DataFrame({"method": ["fedavg"], "seed": [0], "metric": ["nds"], "value": [0.05]})
    figure = masking.against_level(
        levels(),
        metrics={"nds": "NDS", "share": "share"},
        references=ends,
        names={"fedavg": "FedAvg"},
        title="t",
    )
    assert len(figure.axes) == 4
    upper, lower = figure.axes[0], figure.axes[2]
    assert [label.get_text() for label in lower.get_xticklabels()] == ["0", "0.9", "1"]
    mean = next(line for line in upper.lines if line.get_label() == "FedCKA, mean over seeds")
    assert mean.get_xdata().tolist() == [0, 1, 2]
    assert mean.get_ydata().tolist() == pytest.approx([0.005, 0.095, 0.105])
    assert any(line.get_label() == "FedAvg" for line in upper.lines)
    assert not any(line.get_label() == "FedAvg" for line in lower.lines), "it has no such number"


def test_layers_of_all_clients_are_drawn_in_order_with_their_branches() -> None:
    layers = pd.DataFrame(
        {"part": ["backbone", "normalization", "head"], "branch": ["image branch", "image branch", "heads"]},
        index=["a", "b", "c"],
    )
    columns = pd.MultiIndex.from_product([["A", "B"], [2, 3]])
    table = pd.DataFrame([[0.1, 0.2, 0.3, 0.4], [np.nan] * 4, [1.0] * 4], index=layers.index, columns=columns)
    figure = masking.layer_maps(
        table, layers, label="score", title="t", parts=("head", "normalization", "backbone", "neck")
    )
    strip, first, second = figure.axes[:3]
    assert [label.get_text() for label in strip.get_yticklabels()] == ["image branch", "heads"]
    assert strip.images[0].get_array().ravel().tolist() == [2, 1, 0]
    assert first.get_title() == "client A"
    assert second.images[0].get_array()[0].tolist() == [0.3, 0.4]
    assert np.ma.getmaskarray(second.images[0].get_array())[1].all(), "no number, no shade"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "head",
        "normalization",
        "backbone",
    ]


def test_the_curve_of_a_training_says_how_many_layers_a_threshold_finds() -> None:
    rows = pd.DataFrame({"step_size": 0.1, "steps": 2.0, "value": [0.9, 0.2, np.nan, 0.5]})
    other = rows.assign(steps=4.0)
    one, two = masking.moved(pd.concat([rows, other]), title="t").axes[0].lines
    assert one.get_xdata().tolist() == [0.2, 0.5, 0.9]
    assert one.get_ydata().tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    assert [line.get_label() for line in (one, two)] == ["step size 0.1, 2 steps", "step size 0.1, 4 steps"]
    assert one.get_color() == two.get_color()
    assert one.get_linestyle() != two.get_linestyle()


def test_rounds_are_whole_numbers_and_the_threshold_comes_first() -> None:
    rows = levels()[lambda table: table["metric"] == "share"].drop(columns="metric")
    rows = pd.concat([rows.assign(round=number) for number in (2, 3)])
    rows = rows.assign(name=rows["level"].map(str))
    figure = masking.share_over_rounds(rows, order=["0.0", "0.4", "0.9", "1.0"], title="t")
    assert [axis.get_title() for axis in figure.axes] == list(masking.MODES.values())
    assert all(float(tick).is_integer() for axis in figure.axes for tick in axis.get_xticks())


def test_scores_of_layers_stand_in_network_order_under_their_branch() -> None:
    table = pd.DataFrame(
        {"branch": ["LiDAR", "LiDAR", "heads"], "low": [0.1, np.nan, 0.3], "high": [1.0, 0.9, 0.8]}
    )
    axis = masking.score_ranges(table, {"low": "least", "high": "most"}, title="t").axes[0]
    low, high, _ = axis.lines
    assert low.get_ydata().tolist()[::2] == [0.1, 0.3]
    assert (high.get_label(), high.get_ydata().tolist()) == ("most", [1.0, 0.9, 0.8])
    assert [label.get_text() for label in axis.get_xticklabels()] == ["LiDAR", "\nheads"]
