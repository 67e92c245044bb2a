"""Margins beside the spread of repetitions, and masks from few and from many inputs, on tables made by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedlib.experiments.fedcka_masks import chance_jaccard
from fedlib.experiments.fedcka_repeats import agreement_by_round, margins
from fedlib.experiments.study import Study

Row = tuple[int, str, int, str, float]


def runs(rows: list[Row]) -> Study:
    table = pd.DataFrame(rows, columns=["seed", "client", "round", "metric", "value"])
    return Study((), table.assign(method="fedcka", masking="threshold", level=0.9, domain="all"))


def scored(seed: int, client: str, number: int, **scores: float) -> list[Row]:
    """Scores of layers, and masks with threshold 0.9."""
    rows: list[Row] = []
    for name, score in scores.items():
        rows.append((seed, client, number, f"cka/{name}", score))
        rows.append((seed, client, number, f"personal/{name}", float(score < 0.9)))
    return rows


def test_a_margin_stands_beside_the_sample_deviation_of_both_methods() -> None:
    values = {"fedcka": [0.3, 0.4, 0.5], "fedbn": [0.25, 0.3, 0.5], "fedrep": [0.3, 0.3, 0.3]}
    frame = pd.DataFrame(
        [(seed, method, value) for method, line in values.items() for seed, value in enumerate(line)],
        columns=["seed", "method", "value"],
    )
    table = margins(frame, "fedcka", ["fedbn", "fedrep"])
    assert table["margin"].tolist() == pytest.approx([0.05, 0.1])
    assert table["ours"].tolist() == pytest.approx([0.1, 0.1]), "n - 1 in the denominator"
    assert table.loc["fedbn", "theirs"] == pytest.approx(np.std(values["fedbn"], ddof=1))
    assert table.loc["fedbn", "ratio"] == pytest.approx(0.05 / table.loc["fedbn", "theirs"])
    assert table.loc["fedrep", "ratio"] == pytest.approx(1.0)
    assert table["ahead"].tolist() == [2, 2], "a tie is no lead"


def test_masks_of_few_and_many_inputs_are_compared_within_client_and_round() -> None:
    few = scored(0, "A", 2, a=0.1, b=0.2, c=1.0, d=1.0) + scored(0, "B", 2, a=1.0, b=1.0, c=1.0, d=1.0)
    many = scored(0, "A", 2, a=0.1, b=0.95, c=1.0, d=1.0) + scored(0, "B", 2, a=1.0, b=0.8, c=1.0, d=1.0)
    found = agreement_by_round(runs(few), runs(many)).set_index(["client", "metric"])["value"]
    assert found["A", "agreement"] == pytest.approx(1 / 2)  # {a, b} and {a}
    assert found["A", "other_clients"] == pytest.approx(1 / 2)  # {a, b} and {b}
    assert found["A", "chance"] == pytest.approx(chance_jaccard(2, 1, 4))
    assert (found["A", "layers_few"], found["A", "layers_many"]) == (2, 1)
    assert found["A", "score_difference"] == pytest.approx(0.75)
    assert found["B", "agreement"] == 0
    assert found["B", "score_difference"] == pytest.approx(0.2)


def test_two_masks_that_keep_nothing_have_no_agreement() -> None:
    nothing = scored(0, "A", 2, a=1.0, b=1.0) + scored(0, "B", 2, a=1.0, b=1.0)
    found = agreement_by_round(runs(nothing), runs(nothing)).set_index(["client", "metric"])["value"]
    assert all(np.isnan(found["A", metric]) for metric in ("agreement", "other_clients", "chance"))
    assert found["A", "layers_few"] == 0
