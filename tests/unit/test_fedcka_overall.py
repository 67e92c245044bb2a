"""Rows of Tables II and III, on frames made by hand."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from fedlib.experiments import fedcka_overall as overall
from fedlib.experiments.study import Study

COLUMNS = ["seed", "method", "client", "domain", "metric", "value"]


def study(rows: list[tuple[Any, ...]], masking: str = "none") -> Study:
    return Study((), pd.DataFrame(rows, columns=COLUMNS).assign(masking=masking, level=0.5, round=2))


def matrix(
    method: str, values: list[list[float]], seed: int = 0, metric: str = "nds"
) -> list[tuple[Any, ...]]:
    return [
        (seed, method, client, domain, metric, value)
        for client, row in zip("AB", values, strict=True)
        for domain, value in zip("AB", row, strict=True)
    ]


def test_the_two_variants_of_fedcka_are_two_rows() -> None:
    rows = matrix("fedcka", [[1, 2], [3, 4]])
    both = Study((), pd.concat([study(rows, "threshold").metrics, study(rows, "percentage").metrics]))
    found = overall.scores(both, "nds")
    assert found.groupby("method").size().to_dict() == {"fedcka": 4, "fedcka_percentage": 4}
    assert not {"masking", "level"} & set(found)


def test_a_score_by_domain_is_that_of_the_own_model_and_the_weighted_mean() -> None:
    rows = [*matrix("fedavg", [[0.1, 0.2], [0.3, 0.4]]), (0, "fedavg", "all", "all", "nds_weighted", 0.15)]
    found = overall.by_domain(overall.scores(study(rows), "nds", "nds_weighted"), "nds")
    assert found.set_index("domain")["value"].to_dict() == {"A": 0.1, "B": 0.4, "average": 0.15}


def test_gains_are_taken_seed_by_seed_and_client_by_client() -> None:
    rows = [row for seed in (0, 1) for row in matrix("own_domain", [[0.5 + seed, 0], [0, 0.2]], seed)]
    rows += matrix("fedavg", [[0.6, 9], [9, 0.1]], 0) + matrix("fedavg", [[1.4, 9], [9, 0.2]], 1)
    found = overall.gains(overall.by_domain(overall.scores(study(rows), "nds"), "nds"))
    assert set(found["method"]) == {"fedavg"}
    assert found.groupby("domain")["value"].agg(list)["A"] == pytest.approx([0.1, -0.1])
    assert found.groupby("domain")["value"].agg(list)["B"] == pytest.approx([-0.1, 0.0])


def test_the_mean_off_the_diagonal_can_be_weighted_by_the_domain_that_is_scored_on() -> None:
    frame = overall.scores(study(matrix("fedavg", [[9, 0.2], [0.6, 9]])), "nds")
    assert overall.off_diagonal(frame)["value"].tolist() == pytest.approx([0.4])
    assert overall.off_diagonal(frame, {"A": 3, "B": 1})["value"].tolist() == pytest.approx([0.5])


def test_common_classes_leave_out_what_the_client_never_saw() -> None:
    rows = matrix("own_domain", [[0.8, 0.6], [0.4, 0.2]], metric="ap_car")
    # only domain A has buses; client B cannot know them
    rows += [(0, "own_domain", client, "A", "ap_bus", value) for client, value in (("A", 0.4), ("B", 0.0))]
    found = overall.common_classes(study(rows)).set_index(["client", "domain"])["value"]
    assert found["A", "A"] == pytest.approx(0.6)
    assert found["A", "B"] == pytest.approx(0.6)
    assert found["B", "A"] == pytest.approx(0.4)
    assert found["B", "B"] == pytest.approx(0.2)
