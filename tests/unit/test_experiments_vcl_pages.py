"""What the pages on VCL-FPFT put together: data sets under the paper's names, the columns of the register."""

from __future__ import annotations

import pandas as pd
import pytest

from fedlib.errors import InputError
from fedlib.experiments import settings, vcl, vcl_oneshot, vcl_pages
from fedlib.experiments.study import Study
from fedlib.report.register import lookup
from fedlib.report.sides import sides

PARTITIONS = ["IID", "dirichlet_0.6", "dirichlet_0.3"]
METHODS = ["fedavg1", "e_fedisca", "fbpft_vi"]


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Study]:
    """VCL-FPFT and the one-shot methods on two generated sets, profile smoke."""
    config = settings.load("vcl", "smoke", {"num_clients": 2, "dim": 16})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLIB_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("FEDLIB_WORKERS", "1")
        wanted = {"vcl": vcl_pages.PRESET_ROWS["vcl"]}
        ours = vcl_pages.over_datasets(config, lambda own: vcl.rows(own, wanted, PARTITIONS))
        others = vcl_pages.over_datasets(
            config, lambda own: vcl_oneshot.oneshot(own, METHODS, PARTITIONS[2:])
        )
        return ours, others


def three_seeds(frame: pd.DataFrame) -> pd.DataFrame:
    """The one seed of the profile three times: a verdict needs as many."""
    return pd.concat([frame.assign(seed=seed) for seed in range(3)])


def test_data_sets_have_the_names_of_the_papers_tables(studies: tuple[Study, Study]) -> None:
    for study in studies:
        assert set(study.metrics["dataset"]) == {"bloodmnist", "octmnist"}
        assert {run.config["dataset"] for run in study.runs} == {"cells:blood", "cells:oct"}


def test_the_register_finds_what_it_compares_over_tasks(studies: tuple[Study, Study]) -> None:
    frame = three_seeds(vcl_pages.continual(studies[0]))
    for rule in lookup("VCL-2").parts:
        assert len(sides(rule, frame)) == 3
    (rule,) = lookup("VCL-18").parts
    assert len(sides(rule, frame.assign(method="vcl_code"))) == 2 * 3
    assert set(frame["scope"]) == {"taw", "cil", "all"}
    assert set(frame.loc[frame["metric"] == "task_accuracy", "task"]) == {0, 1}


@pytest.mark.parametrize(("claim", "datasets"), [("VCL-3", 1), ("VCL-4", 1), ("VCL-5", 2)])
def test_the_register_finds_what_it_compares_over_methods(
    studies: tuple[Study, Study], claim: str, datasets: int
) -> None:
    frame = three_seeds(vcl_pages.by_method(*studies))
    frame = frame[frame["partition"] == "dirichlet_0.3"]
    for rule in lookup(claim).parts:
        table = sides(rule, frame)
        compared = set(table["method"])
        assert compared <= set(METHODS)
        assert len(table) == 3 * datasets * len(compared)


def test_data_sets_that_are_not_planned_are_refused() -> None:
    config = settings.load("vcl", "smoke")
    with pytest.raises(InputError, match="data set is 'blood'"):
        vcl_pages.over_datasets(config, vcl_oneshot.oneshot, ["blood"])
    none = settings.load("vcl", "smoke", {"datasets": {}})
    with pytest.raises(InputError, match="plan no data sets"):
        vcl_pages.over_datasets(none, vcl_oneshot.oneshot)
