"""The authors' numbers and ours side by side: what is read, compared and drawn."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from fedlib.experiments import fedcka_detection
from fedlib.report import detection


@pytest.fixture(autouse=True)
def _close_figures() -> object:
    yield
    plt.close("all")


def frame(values: dict[str, list[float]]) -> pd.DataFrame:
    rows = [(method, seed, value) for method, found in values.items() for seed, value in enumerate(found)]
    return pd.DataFrame(rows, columns=["method", "seed", "value"])


def test_the_authors_table_has_all_methods_of_the_paper_and_its_average() -> None:
    table = detection.authors_nds()
    assert set(table.index) < set(detection.METHODS)
    assert len(table) == 10
    assert table.loc["fedcka", "average"] == 0.63


def test_every_row_of_the_comparison_has_a_name() -> None:
    assert set(fedcka_detection.METHODS) <= set(detection.METHODS)


def test_differences_are_paired_and_say_whether_three_seeds_decide() -> None:
    # the spread between seeds is large, that of the differences is not
    rows = frame({"fedcka": [0.5, 0.7, 0.9], "fedavg": [0.4, 0.6, 0.81], "fedbn": [0.9, 0.7, 0.5]})
    assert detection.outcome(detection.difference(rows, "fedcka", "fedavg")) == "higher"
    assert detection.outcome(detection.difference(rows, "fedavg", "fedcka")) == "lower"
    assert detection.outcome(detection.difference(rows, "fedcka", "fedbn")) == "undecided"
    table = detection.differences(rows, {"fedcka": "minus FedCKA"}, ["fedcka", "fedavg", "fedmc"])
    assert list(table.index) == ["FedCKA", "FedAvg"]
    assert table.loc["FedCKA", "minus FedCKA"] == "–"
    assert table.loc["FedAvg", "minus FedCKA"].endswith("lower")


def test_a_method_with_one_seed_serves_all_seeds_of_the_other() -> None:
    effect = detection.difference(frame({"start": [0.2], "fedavg": [0.3, 0.4, 0.5]}), "fedavg", "start")
    assert (effect.n, effect.mean) == (3, pytest.approx(0.2))
    alone = detection.difference(frame({"start": [0.2], "fedavg": [0.3]}), "fedavg", "start")
    assert detection.outcome(alone) == "one seed"


def test_clients_are_counted_by_what_the_seeds_decide() -> None:
    parts = {
        "A": {"own_domain": [0.1, 0.1, 0.1], "fedcka": [0.2, 0.21, 0.22]},
        "B": {"own_domain": [0.1, 0.1, 0.1], "fedcka": [0.0, 0.01, 0.02]},
        "C": {"own_domain": [0.1, 0.1, 0.1], "fedcka": [0.0, 0.1, 0.3]},
    }
    rows = pd.concat([frame(values).assign(domain=domain) for domain, values in parts.items()])
    counts = detection.counted(rows, ["fedcka", "fedavg"]).loc["FedCKA"]
    assert counts.to_dict() == {"mean above": 2, "higher": 1, "undecided": 1, "lower": 1}


def test_the_two_sources_never_share_an_axis() -> None:
    ours = frame({"start": [0.2], "own_domain": [0.3, 0.4], "fedavg": [0.3, 0.2], "fedcka": [0.5, 0.6]})
    figure = detection.two_sources(
        detection.authors_nds()["average"], ours, ours="ours", label="NDS", title="NDS"
    )
    left, right = figure.axes
    assert (left.get_title(), right.get_title()) == (detection.AUTHORS, "ours")
    assert "[code]" in left.get_title()
    assert left.get_xlim() != right.get_xlim()
    assert [text.get_text() for text in left.get_yticklabels()][:3] == list(detection.METHODS.values())[:3]


def test_matrices_are_drawn_in_one_scale_with_clients_as_rows() -> None:
    rows = pd.DataFrame(
        [
            (method, seed, client, domain, 0.1 * number + (client == domain) * 0.3)
            for number, method in enumerate(("own_domain", "fedavg", "fedcka"))
            for seed in (0, 1)
            for client in "AB"
            for domain in "AB"
        ],
        columns=["method", "seed", "client", "domain", "value"],
    )
    panels = {"own_domain": "alone", "fedavg": "FedAvg", "fedcka": "FedCKA"}
    figure = detection.matrices(rows, panels, label="NDS", title="Transfer")
    drawn = [axis for axis in figure.axes if axis.get_visible() and axis.get_title()]
    assert [axis.get_title() for axis in drawn] == ["alone", "FedAvg", "FedCKA"]
    assert {axis.get_ylabel() for axis in drawn} == {"model of client"}
    limits = {axis.collections[0].get_clim() for axis in drawn}
    assert limits == {(0.0, 0.5)}
    around = detection.matrices(
        rows.assign(value=-rows["value"]), panels, label="NDS", title="Gap", differences=True
    )
    assert around.axes[0].collections[0].get_clim() == pytest.approx((-0.5, 0.5))


def test_gains_of_two_sources_keep_their_titles_and_scales_around_zero() -> None:
    theirs = pd.DataFrame({"A": [0.1, -0.2], "B": [0.0, 0.3]}, index=["FedAvg", "FedCKA"])
    figure = detection.gains_of_two(theirs, 0.1 * theirs, ours_title="ours", title="Gains")
    assert [axis.get_title() for axis in figure.axes[:2]] == [detection.AUTHORS, "ours"]
    scales = [axis.collections[0].get_clim() for axis in figure.axes[:2]]
    assert scales == [pytest.approx((-0.3, 0.3)), pytest.approx((-0.03, 0.03))]
