"""The continual baselines beside VCL-FPFT at the smallest size."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from fedlib.data.class_tasks import warning
from fedlib.errors import InputError
from fedlib.experiments import settings, vcl_continual, vcl_continual_pages, vcl_pages
from fedlib.experiments.settings import VCLSettings
from fedlib.experiments.study import Study
from fedlib.experiments.vcl_scene import Scene
from fedlib.methods.continual.registry import METHODS
from fedlib.report.register import lookup
from fedlib.report.sides import sides
from fedlib.runs import Store


def small(scenario: str | None = None, **changes: Any) -> VCLSettings:
    loaded: VCLSettings = settings.load("vcl", "smoke", {"num_clients": 2, "dim": 16} | changes)
    return loaded if scenario is None else loaded.for_scenario(scenario)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """All methods of Tables 7 and 8 on the four classes of cells:oct in three tasks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLIB_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("FEDLIB_WORKERS", "1")
        config = small("tables_7_and_8")
        return vcl_pages.over_datasets(config, vcl_continual_pages.beside_vcl, ["octmnist"])


def test_every_method_stands_beside_vcl_in_both_scopes(study: Study) -> None:
    frame = vcl_continual_pages.scored(study)
    stored = {"icarl", "eeil"}
    assert set(METHODS) - stored | {"vcl", "vcl_code", "vcl_joint", "frozen_ncm"} == set(frame["method"])
    average = frame[frame["metric"] == "average_accuracy"].pivot(
        index="method", columns="scope", values="value"
    )
    assert (average["cil"] <= average["taw"]).all()
    for metric in (
        "forgetting",
        "forgetting_code",
        "bwt",
        "balanced_accuracy",
        "macro_f1",
        "constant",
        "overall_accuracy",
    ):
        own = frame[(frame["metric"] == metric) & (frame["scope"] == "cil")]
        assert set(METHODS) - stored <= set(own["method"])
    floors = frame[frame["metric"].isin(["majority", "average_majority"])].groupby(["metric", "scope"])[
        "value"
    ]
    assert (floors.nunique() == 1).all(), "the same test images and tasks for all, one head at once included"
    assert floors.first()["average_majority", "taw"] > floors.first()["average_majority", "cil"]


def test_tasks_of_one_class_are_recorded_and_always_right_task_aware(study: Study) -> None:
    frame = vcl_continual_pages.scored(study)
    recorded = frame[frame["metric"] == "single_class_tasks"]
    assert (recorded["value"] == 2).all()
    single = frame[(frame["metric"] == "task_accuracy") & (frame["scope"] == "taw") & (frame["task"] > 0)]
    assert (single["value"] == 100).all()
    tasks = Scene.of(small("tables_7_and_8").for_dataset("octmnist")).tasks(0)
    assert "tasks 2 and 3" in warning(tasks)


def test_the_register_finds_what_it_compares(study: Study) -> None:
    frame = pd.concat([vcl_continual_pages.scored(study).assign(seed=seed) for seed in range(3)])
    for claim in ("VCL-1", "VCL-12", "VCL-13", "VCL-14"):
        for rule in lookup(claim).parts:
            assert len(sides(rule, frame)) >= 3


def test_every_average_can_be_computed_again_from_the_matrix_and_the_sizes_of_the_tasks(study: Study) -> None:
    frame = study.select(stage="tasks", row="ewc")
    sizes = frame[frame["metric"] == "test_samples"].set_index("task")["value"]
    assert sizes.gt(0).all()
    for scope in ("cil", "taw"):
        own = frame[frame["scope"] == scope]
        cells = own[own["metric"] == "accuracy"].pivot(index="after", columns="task", values="value")
        (average,), (overall,) = (
            own.loc[own["metric"] == name, "value"] for name in ("average_accuracy", "overall_accuracy")
        )
        last = cells.iloc[-1]
        assert average == pytest.approx(last.mean())
        assert overall == pytest.approx((last * sizes).sum() / sizes.sum())


def test_the_course_over_tasks_and_what_is_kept_are_there(study: Study) -> None:
    course = vcl_continual_pages.course(study)
    assert (course["task"] <= course["after"]).all()
    kept = vcl_continual_pages.kept(study).set_index(["method", "metric"])["value"]
    assert kept["finetune", "stored_kilobytes"] == 0 < kept["ewc", "stored_kilobytes"]
    assert kept["eft", "parameters"] > kept["finetune", "parameters"]


def test_the_same_run_gives_the_same_numbers_and_is_computed_once(study: Study) -> None:
    config = small("tables_7_and_8").for_dataset("octmnist")
    again, stored = (vcl_continual.continual(config, ["si"]) for _ in range(2))
    assert not again.runs[0].reused
    assert stored.runs[0].reused
    first = study.select(row="si")["value"].tolist()
    assert stored.metrics["value"].tolist() == again.metrics["value"].tolist() == first


@pytest.mark.parametrize(
    ("changes", "methods", "message"),
    [
        ({"suite": "verma"}, ["icarl"], "method 'icarl' stores samples; allowed in suite verma"),
        ({}, ["ewcc"], "method is 'ewcc'.*did you mean 'ewc'"),
        ({"training": {"epoch": 1}}, ["ewc"], "training is 'epoch'.*did you mean 'epochs'"),
        ({"continual": {"ewc": {"lambda": 1}}}, ["ewc"], "option of ewc is 'lambda'"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_computed(
    changes: dict[str, Any], methods: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        vcl_continual.continual(small(**changes), methods)
    assert not Store().list()


def test_every_method_has_a_kind_and_a_name() -> None:
    kinds = vcl_continual_pages.kinds()
    assert set(kinds.index) == set(METHODS)
    assert not kinds.isna().any().any()
