"""Our results stand beside the cells that the paper prints for the same data, partition and quantity."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from fedlib.data.imageset import Split
from fedlib.experiments import settings
from fedlib.experiments.vcl_scene import Scene
from fedlib.report import protocol, transfer, vcl_tables
from fedlib.report.printed import printed


def continual() -> pd.DataFrame:
    """Two sets and two partitions: digits is not in the paper, octmnist has two tasks there."""
    rows = []
    for dataset, tasks in (("digits", 3), ("octmnist", 2)):
        for split in ("IID", "dirichlet_0.3"):
            for method, shift in (("vcl", 0.0), ("vcl_code", 10.0)):
                for seed in range(3):
                    base = {"dataset": dataset, "partition": split, "method": method, "seed": seed}
                    for scope, value in (("taw", 80.0), ("cil", 40.0)):
                        own = base | {"scope": scope}
                        value = value + shift + seed
                        rows += [
                            own | {"metric": name, "task": -1, "value": value}
                            for name in ("overall_accuracy", "average_accuracy")
                        ]
                        rows += [
                            own | {"metric": "task_accuracy", "task": i, "value": value + i}
                            for i in range(tasks)
                        ]
                    whole = {"majority": 25.0, "balanced_accuracy": 30.0 + shift, "macro_f1": 20.0 + seed}
                    whole["constant"] = float(method == "vcl_code" and split != "IID")
                    rows += [
                        base | {"scope": "cil", "metric": name, "task": -1, "value": value}
                        for name, value in whole.items()
                    ]
                    whole |= {"macro_f1": 60.0, "constant": 0.0, "average_majority": 75.0}
                    rows += [
                        base | {"scope": "taw", "metric": name, "task": -1, "value": value}
                        for name, value in whole.items()
                    ]
    return pd.DataFrame(rows)


def test_overall_accuracy_is_class_incremental_and_the_average_is_task_aware_as_printed() -> None:
    table = vcl_tables.class_incremental(continual())
    paper = printed(1).set_index(["dataset", "partition"]).loc[("OCTMNIST", "dirichlet_0.3")]
    row = table.loc["octmnist, α = 0.3"]
    assert row["overall: paper"] == f"{paper['overall_acc']:.2f}"
    assert row["average, task known: paper"] == f"{paper['avg_acc']:.2f}"
    assert row["overall: vcl"] == "41.0 ± 1.0"
    assert (row["overall: constant"], row["average, task known: constant"]) == ("25.0", "75.0")
    assert row["average, task known: vcl_code"] == "91.0 ± 1.0"
    assert list(table.index[:2]) == ["digits, IID", "digits, α = 0.3"]
    assert (table.loc["digits, IID", ["overall: paper", "average, task known: paper"]] == "–").all()


def test_unequal_classes_have_balanced_accuracy_and_f1_and_collapsed_heads_are_marked() -> None:
    table = vcl_tables.unequal_classes(continual())
    assert table.loc["octmnist, IID"].to_dict() == {
        "balanced: vcl": "30.0 ± 0.0",
        "balanced: vcl_code": "40.0 ± 0.0",
        "macro-F1: vcl": "21.0 ± 1.0",
        "macro-F1: vcl_code": "21.0 ± 1.0",
    }
    assert table.loc["digits, α = 0.3", "macro-F1: vcl_code"] == "21.0 ± 1.0 †"
    assert "†" not in table.loc["digits, α = 0.3", "macro-F1: vcl"]
    known = vcl_tables.unequal_classes(continual(), scope="taw")
    assert known.loc["digits, α = 0.3", "macro-F1: vcl_code"] == "60.0 ± 0.0"


def test_each_case_has_the_printed_tasks_above_both_of_ours() -> None:
    table = vcl_tables.per_task(continual(), "vcl")
    case = table.loc["octmnist, IID"]
    paper = printed(1).set_index(["dataset", "partition"]).loc[("OCTMNIST", "IID")]
    assert list(case["scored"]) == ["paper", "task known", "among all classes"]
    assert list(case["task 1"]) == [f"{paper['task1']:.2f}", "82.0 ± 1.0", "42.0 ± 1.0"]
    assert set(case["task 2"]) == {"–"}
    fourth = printed(4).set_index(["dataset", "partition"]).loc[("OCTMNIST", "IID"), "task1"]
    mixed = vcl_tables.per_task(continual(), "vcl", number=4).loc["octmnist, IID", "task 1"]
    assert list(mixed) == [f"{fourth:.2f}", "82.0 ± 1.0", "42.0 ± 1.0"]
    assert list(table.loc["digits, IID", "task 2"]) == ["–", "83.0 ± 1.0", "43.0 ± 1.0"]


def test_collapsed_methods_are_marked_and_the_largest_class_stands_below() -> None:
    rows = [
        {"seed": seed, "dataset": "octmnist", "method": method, "metric": metric, "value": value}
        for seed in range(3)
        for method, constant in (("vcl", 0.0), ("dafl", 1.0))
        for metric, value in (("overall_accuracy", 50.0), ("constant", constant), ("majority", 25.0))
    ]
    table = vcl_tables.one_shot(pd.DataFrame(rows))
    assert table["octmnist"].to_dict() == {
        "vcl": "50.0 ± 0.0",
        "dafl": "50.0 ± 0.0 †",
        "largest class": "25.0",
    }


@pytest.mark.parametrize(("split", "value"), [("IID", "90.59"), ("dirichlet_0.3", "85.44")])
def test_printed_one_shot_cells_come_from_the_table_of_the_partition(split: str, value: str) -> None:
    assert vcl_tables.one_shot_printed(split).loc["vcl", "bloodmnist"] == value
    assert vcl_tables.one_shot_printed("IID", tables=[5]).loc["vcl", "bloodmnist"] == "95.24"


def test_the_scale_names_kind_and_size_of_each_set_and_the_encoders() -> None:
    config = settings.load("vcl", "smoke", {"weights": "/somewhere/of/mine/encoder.pth"})
    table_6 = config.for_scenario("table_6")
    assert vcl_tables.scale(table_6) == (
        "digits (real, 8 pixels); bloodmnist (surrogate, 14 pixels); encoder cnn3_bn, weights encoder.pth; "
        "profile smoke, 1 seed"
    )
    plain = settings.load("vcl", "smoke").for_scenario("table_6")
    assert vcl_tables.scale(plain, "digits").startswith(
        "digits (real, 8 pixels); encoder cnn3_bn, random weights;"
    )
    named = plain.model_copy(update={"weights": "efficientnet-lite0"})
    assert "weights efficientnet-lite0, images enlarged to 224 pixels" in vcl_tables.scale(named, "digits")
    five = settings.load("vcl", "smoke").for_scenario("heterogeneous")
    assert "encoders cnn3_bn, wrn16_2, vgg8_bn, random weights" in vcl_tables.scale(five)


def test_the_scale_names_encoders_that_torchvision_has_no_weights_for() -> None:
    paper = settings.load("vcl", "paper").for_scenario("heterogeneous")
    digits = settings.load("vcl", "smoke").for_scenario("heterogeneous")
    mixed = digits.model_copy(update={"weights": paper.weights, "encoders": paper.encoders})
    assert vcl_tables.scale(mixed, "digits") == (
        "digits (real, 8 pixels); encoders mobilenetv2_attention, resnet34, wrn16_2, vgg16_bn, vgg8_bn, "
        "weights torchvision, images enlarged to 224 pixels (but wrn16_2, vgg8_bn: random weights, images not "
        "enlarged); profile smoke, 1 seed"
    )
    for name, words in (
        ("mobilenetv2_attention", "weights torchvision, images enlarged to 224 pixels"),
        ("wrn16_2", "random weights"),
    ):
        same = mixed.model_copy(update={"encoders": (name,) * 5})
        assert f"encoder {name}, {words}; profile" in vcl_tables.scale(same, "digits")
    scene = Scene.of(mixed)
    started = [scene.encoder(0, client) for client in (2, 4)]
    assert [(made.source, made.input_size) for made in started] == [("random", 8)] * 2


def test_figures_have_a_panel_for_each_set_and_scope() -> None:
    frame = continual()
    cells = frame[(frame["metric"] == "task_accuracy") & (frame["method"] == "vcl")].assign(after=1)
    figure = transfer.accuracy_matrices(cells, scopes={"taw": "task known", "cil": "all"}, title="title")
    assert len(figure.axes) == 4
    pictures = np.zeros((4, 6, 6, 3), np.uint8)
    split = Split(pictures, np.array([0, 1, 1, 0]))
    assert len(protocol.samples({"set": split}, per_class=2, title="title").axes) == 2
    hospitals = protocol.by_domain(split, np.array([0, 0, 1, 1]))
    assert {name: list(own.labels) for name, own in hospitals.items()} == {
        "hospital 0": [0, 1],
        "hospital 1": [1, 0],
    }
    counts = {"IID": np.ones((2, 3)), "skewed": np.eye(2, 3)}
    assert len(protocol.holdings(counts, title="title").axes) == 2
    plt.close("all")
