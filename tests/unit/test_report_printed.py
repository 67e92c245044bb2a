"""What the printed tables of VCL-FPFT say when they are set against each other, read from the CSV files."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from fedlib.report import printed


def test_averages_are_means_of_the_task_columns_in_all_30_rows() -> None:
    rows = printed.task_columns()
    assert len(rows) == 30
    assert rows["gap"].abs().max() <= 0.005 + 1e-9


def test_overall_lies_outside_of_the_tasks_in_28_of_30_rows() -> None:
    rows = printed.task_columns()
    assert rows.groupby("table")["outside"].sum().to_dict() == {1: 14, 4: 14}
    tissue = rows.query("table == 1 and dataset == 'TissueMNIST' and partition == 'dirichlet_0.3'").iloc[0]
    assert (tissue["overall"], tissue["lowest"], tissue["highest"]) == (56.25, 73.33, 82.68)


def test_tasks_of_one_class_are_exactly_100() -> None:
    assert (printed.printed(1).query("dataset == 'DermaMNIST'")["task3"] == 100).all()
    last = printed.printed(8).query("method == 'VCL-FPFT' and dataset == 'OCTMNIST'")
    assert last[["task2", "task3"]].to_numpy().tolist() == [[100.0, 100.0]]


def test_rows_of_the_method_repeat_the_overall_accuracies() -> None:
    rows = printed.repeated_rows()
    assert rows["cells"].tolist() == [10, 5, 15]
    assert (rows["equal"] == rows["cells"]).all()


def test_table_6_is_on_the_scale_of_overall_and_table_7_on_that_of_the_average() -> None:
    rows = printed.two_scales().set_index(["table", "dataset"])
    assert rows.loc[(6, "BloodMNIST"), "printed"] == 90.92
    assert rows.loc[(6, "BloodMNIST"), "overall"] == "85.44 to 95.24"
    assert float(rows.loc[(6, "BloodMNIST"), "average"].split(" to ")[0]) > 90.92
    average = rows.loc[(7, "PathMNIST"), "average"].split(" to ")
    assert float(average[0]) <= rows.loc[(7, "PathMNIST"), "printed"] <= float(average[1])
    assert float(rows.loc[(7, "PathMNIST"), "overall"].split(" to ")[1]) < 97.32


def test_one_average_of_table_7_is_not_the_mean_of_table_8() -> None:
    rows = printed.tables_7_and_8()
    wrong = rows[rows["gap"].abs() > 0.02 + 1e-9]
    assert wrong[["method", "dataset"]].to_numpy().tolist() == [["VCL-FPFT", "OCTMNIST"]]
    assert len(rows) == 30


def test_places_in_table_2() -> None:
    rows = printed.places()
    counts = {name: [int((rows[name] == place).sum()) for place in (1, 2)] for name in ("one-shot", "all")}
    assert counts == {"one-shot": [5, 4], "all": [3, 3]}
    assert rows.query("dataset == 'DermaMNIST' and partition == 'dirichlet_0.6'")["one-shot"].item() == 7


def test_heterogeneous_backbones_are_worse_in_three_cells_and_better_by_up_to_10_72() -> None:
    overall, average = (printed.heterogeneous_gain(name) for name in ("overall_acc", "avg_acc"))
    assert int((overall <= 0).sum().sum()) + int((average <= 0).sum().sum()) == 3
    assert overall.loc["OCTMNIST", "IID"] == pytest.approx(-1.10)
    assert average.loc["PathMNIST", "IID"] == pytest.approx(-0.42)
    assert average.loc["DermaMNIST", "dirichlet_0.6"] == pytest.approx(-0.21)
    assert overall.loc["DermaMNIST", "IID"] == pytest.approx(10.72)


def test_every_cell_of_fedavg_in_one_round_is_the_share_of_a_class() -> None:
    rows = printed.constant_cells()
    assert rows.groupby("method").size().to_dict() == {"FedAvg(1)": 15, "DAFL": 11, "DENSE": 1}
    assert set(rows["accuracy"]) == {5.86, 7.13, 10.97, 13.74, 16.92, 18.24, 18.64, 25.0, 32.07, 66.88}


def test_the_method_is_below_the_majority_floor_on_derma_only() -> None:
    rows = printed.majority_floor()
    assert rows.loc["DermaMNIST", "floor"] == 66.88
    below = rows.drop(columns="floor").lt(rows["floor"], axis=0)
    assert below.loc["DermaMNIST"].all()
    assert not below.drop(index="DermaMNIST").any().any()


def test_a_single_round_of_fedavg_does_not_depend_on_alpha_on_three_sets() -> None:
    assert int(printed.single_round_fedavg()["same"].sum()) == 3


def test_statements_are_all_entries_with_an_audit() -> None:
    outcome = printed.statements()["outcome"]
    contradicted = outcome[outcome == "contradicted"].index.tolist()
    assert contradicted == ["VCL-1", "VCL-8", "VCL-9", "VCL-T1", "VCL-T4"]
    assert len(outcome) == 19


def test_the_figure_has_one_line_for_each_row() -> None:
    figure = printed.overall_and_tasks(1)
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert len(labels) == 15
    assert "TissueMNIST, α = 0.3" in labels
    plt.close(figure)
