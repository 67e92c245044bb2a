"""Tables of continual methods."""

from __future__ import annotations

import pandas as pd
import pytest

from fedlib.errors import InputError
from fedlib.report import continual, transfer

NAMES = {"finetune": "Finetune", "ewc": "EWC", "vcl": "VCL-FPFT (paper)"}


def results(dataset: str = "bloodmnist") -> pd.DataFrame:
    rows = []
    for seed in (0, 1):
        for shift, method in enumerate(NAMES):
            for scope in ("cil", "taw", "all"):
                base = {"seed": seed, "dataset": dataset, "method": method, "scope": scope, "task": -1}
                values = {"overall_accuracy": 40.0, "balanced_accuracy": 30.0, "macro_f1": 25.0}
                for metric, value in (values | {"forgetting": 20.0, "constant": 0.0}).items():
                    value = value + shift + seed
                    if metric == "constant":  # EWC with one seed, Finetune with both where the task is known
                        value = {"ewc": float(seed), "finetune": float(scope == "taw")}.get(method, 0.0)
                    rows.append(base | {"metric": metric, "value": value})
                for metric, value in {"majority": 15.0, "average_majority": 33.3}.items():
                    rows.append(base | {"metric": metric, "value": value * (1 + (scope == "taw"))})
                rows.append(base | {"metric": "task_accuracy", "task": 0, "value": 1.0})
    return pd.DataFrame(rows)


def test_scores_are_means_over_seeds_in_the_order_of_the_names() -> None:
    table = continual.scores(results(), NAMES)
    assert list(table.index) == list(NAMES.values())
    assert table.loc["Finetune", "overall"] == "40.5 ± 0.7"
    assert table.loc["EWC", "constant"] == "1 of 2"


def test_unequal_classes_have_both_scores_in_both_scopes_and_collapsed_predictors_a_mark() -> None:
    table = continual.unequal_classes(results(), NAMES)
    assert list(table.index) == list(NAMES.values())
    assert table.loc["Finetune"].tolist() == [
        "30.5 ± 0.7", "30.5 ± 0.7 †", "25.5 ± 0.7", "25.5 ± 0.7 †",
    ]  # fmt: skip
    assert list(table) == [
        f"{score}: {scope}" for score in ("balanced", "macro-F1") for scope in ("all classes", "task known")
    ]
    assert "†" not in "".join(table.loc["EWC"])  # one of two seeds
    assert continual.collapsed(results(), NAMES).to_dict() == {"bloodmnist": {"EWC": 1}}


def test_the_floor_names_the_best_constant_predictors() -> None:
    assert continual.floor(results()) == (
        "Always naming one class scores 15.0 % overall and 33.3 % on average over the tasks; "
        "one of the known task, 30.0 % overall and 66.6 % on average over the tasks."
    )


def test_what_is_forgotten_stands_apart_from_accuracy() -> None:
    frame = results()
    frame = frame[(frame["method"] != "vcl") | (frame["metric"] != "forgetting")]  # one without tasks
    table = continual.losses(frame, NAMES)
    assert list(table.index) == ["Finetune", "EWC"]
    assert list(table) == ["class-incremental", "task-aware"]
    assert table.loc["EWC", "task-aware"] == "21.5 ± 0.7"
    assert not set(table) & set(continual.scores(frame, NAMES))


def test_printed_numbers_stand_beside_ours_and_are_those_of_the_register() -> None:
    table = continual.beside_printed(6, "bloodmnist", results(), NAMES)
    assert table.loc["Finetune", "accuracy: paper"] == "46.59 ± 6.46"
    assert table.loc["VCL-FPFT (paper)", "forgetting: paper"] == "0.05 ± 0.11"
    assert table.loc["EWC", "accuracy: all classes"] == "41.5"
    further = results().replace({"method": {"ewc": "vcl_code"}})
    beside = continual.beside_printed(6, "bloodmnist", further, {"vcl_code": "code", "joint": "Joint"})
    assert beside.loc["code", ["accuracy: paper", "accuracy: all classes"]].tolist() == ["–", "41.5"]
    assert list(beside.index) == ["code"]
    three = continual.beside_printed(8, "octmnist", results("octmnist"), NAMES)
    assert three.loc["Finetune", ["task 1: paper", "task 1: task known", "task 2: task known"]].tolist() == [
        "0.00",
        "1.0",
        "–",
    ]
    with pytest.raises(InputError, match="Table 6 prints nothing for digits"):
        continual.beside_printed(6, "digits", results("digits"), NAMES)


def test_results_of_several_sets_are_not_mixed() -> None:
    both = pd.concat([results(), results("octmnist")])
    with pytest.raises(InputError, match="results are of bloodmnist, octmnist; allowed: one data set"):
        continual.scores(both, NAMES)
    with pytest.raises(InputError, match="allowed: one data set"):
        continual.losses(both, NAMES)


def test_methods_stand_side_by_side_over_the_tasks() -> None:
    frame = pd.DataFrame(
        [
            {"seed": 0, "dataset": "x", "method": m, "scope": s, "after": t, "task": i, "value": 50.0}
            for m in NAMES
            for s in ("cil", "taw")
            for t in range(2)
            for i in range(t + 1)
        ]
    )
    panels = continual.course(frame, {"ewc": "EWC", "vcl": "VCL-FPFT (paper)"})
    assert list(dict.fromkeys(panels["dataset"])) == ["EWC", "VCL-FPFT (paper)"]
    figure = transfer.accuracy_matrices(panels, scopes=continual.SCOPES, title="title")
    assert [axis.get_title() for axis in figure.axes] == ["EWC", "VCL-FPFT (paper)", "", ""]
