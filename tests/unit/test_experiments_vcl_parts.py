"""Rows that change one part of VCL-FPFT, and the way from the paper to its code, at the smallest size."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest

from fedlib.errors import InputError
from fedlib.experiments import settings, vcl, vcl_oneshot, vcl_parts
from fedlib.experiments.settings import VCLSettings
from fedlib.experiments.study import Study
from fedlib.experiments.vcl_scene import Scene, client_run
from fedlib.report.register import lookup
from fedlib.report.sides import sides

UNUSED_BY_MOMENTS = {"vi_recipe", "vi_steps", "vi_lr"}


def tiny(**changes: object) -> VCLSettings:
    loaded: VCLSettings = settings.load("vcl", "smoke", {"num_clients": 2, "dim": 16} | changes)
    return loaded


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLIB_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("FEDLIB_WORKERS", "1")
        yield patch


@pytest.fixture(scope="module")
def anchors(home: pytest.MonkeyPatch) -> Study:
    return vcl.rows(tiny(), vcl_parts.ablations("anchors"), ["dirichlet_0.3"])


def test_every_row_has_options_that_fit_and_spaces_are_one_apart() -> None:
    scene = Scene.of(tiny())
    for space in vcl_parts.SPACES:
        for base, changes in vcl_parts.ablations(space).values():
            scene.options(base, **changes)
    for changes in vcl_parts.SOURCES.values():
        scene.options("paper", **changes)
    with pytest.raises(InputError, match="space is 'anchor'.*did you mean 'anchors'"):
        vcl_parts.ablations("anchor")


@pytest.mark.parametrize("profile", ["quick", "paper"])
def test_the_way_to_the_code_ends_at_the_code_and_each_step_changes_something(profile: str) -> None:
    config = settings.load("vcl", profile, {"dataset": "digits", "dataset_options": {}, "device": "cpu"})
    scene, steps = Scene.of(config), vcl_parts.ladder(config)
    options = [scene.options(base, **changes) for base, changes in steps.values()]
    assert options[0] == scene.options("paper")
    code = scene.options("code")
    last = options[-1].changed(**{name: getattr(code, name) for name in UNUSED_BY_MOMENTS})
    assert last == code
    assert all(before != after for before, after in itertools.pairwise(options))


def test_the_register_finds_what_it_compares_over_parts(anchors: Study) -> None:
    by_space = {"anchors": anchors, "mean encoder": anchors}  # the same twice: names alone matter here
    frame = vcl_parts.conditions(by_space)
    frame = pd.concat([frame.assign(seed=seed) for seed in range(3)])  # a verdict needs as many
    for claim in ("VCL-16", "VCL-17"):
        for rule in lookup(claim).parts:
            assert set(sides(rule, frame)["space"]) == {"anchors", "mean encoder"}


def test_every_score_is_there_once_for_each_row_and_seed(anchors: Study) -> None:
    frame = vcl_parts.scores(anchors)
    assert not frame.duplicated(["seed", "row", "metric"]).any()
    table = frame.set_index(["row", "metric"])["value"].unstack()
    assert set(table.index) == set(vcl_parts.CHANGES)
    assert not table.isna().any(axis=None)
    assert (table["uplinks"] == 1).all()
    assert table["upload"].between(1, 50).all()  # kB
    assert table[["cil", "taw", "joint"]].stack().between(0, 100).all()
    assert (table["forgetting"] >= table["forgetting_code"]).all()
    assert table["cosine_real"].between(-1, 1).all()
    assert (table["scatter_ratio"] > 0).all()


def test_the_codes_split_is_counted_without_training(home: pytest.MonkeyPatch) -> None:
    frame = vcl_parts.lost_and_repeated(tiny(), ["dirichlet_code_0.3"])
    held = frame.loc[frame["metric"] == "held", "value"]
    assert len(held) == 1
    assert held.between(0, 100).all()
    with pytest.raises(InputError, match="partition is 'IID'; allowed: dirichlet_code_<alpha>"):
        vcl_parts.lost_and_repeated(tiny(), ["IID"])


def test_one_and_two_processes_give_the_same_numbers(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for workers in ("1", "2"):
        monkeypatch.setenv("FEDLIB_WORKERS", workers)
        monkeypatch.setenv("FEDLIB_HOME", str(tmp_path_factory.mktemp(f"workers-{workers}")))
        wanted = {"paper": ("paper", {}), "code": ("code", {})}
        study = vcl.rows(tiny(seeds=2), wanted, ["dirichlet_0.3"])
        others = vcl_oneshot.oneshot(tiny(seeds=2), ["fedisca", "frozen_lda"], ["dirichlet_0.3"])
        found.append(pd.concat([study.metrics, others.metrics], ignore_index=True))
    pd.testing.assert_frame_equal(*found, check_exact=True)


def test_repetitions_have_their_own_partition_and_first_weights(home: pytest.MonkeyPatch) -> None:
    scene = Scene.of(tiny(seeds=2))
    first, second = (scene.encoder(seed).state_dict() for seed in (0, 1))
    assert (first["neck.weight"] != second["neck.weight"]).any()
    splits = [[list(rows) for rows in scene.partition("IID", seed).clients] for seed in (0, 1)]
    assert splits[0] != splits[1]
    losses = [client_run(scene, "IID", seed, scene.options("paper")).metrics["value"] for seed in (0, 1)]
    assert losses[0].tolist() != losses[1].tolist()


def test_a_one_shot_score_stands_with_all_that_it_depends_on(home: pytest.MonkeyPatch) -> None:
    (run,) = vcl_oneshot.oneshot(tiny(), ["dense"], ["dirichlet_0.3"]).runs
    assert {"dataset", "model", "num_clients", "partition", "seed", "method"} <= set(run.config)
    assert run.config["budget"]["generator_steps"] == 2
    assert run.config["budget"]["training"]["epochs"] == 1


def test_the_natural_order_changes_the_tasks_of_every_seed_but_the_first(home: pytest.MonkeyPatch) -> None:
    config = tiny(seeds=2)
    natural = vcl_parts.natural_order(config)
    mine, labels = Scene.of(config), Scene.of(natural)
    assert labels.tasks(0) == labels.tasks(1) == mine.tasks(0) != mine.tasks(1)
    rows = vcl_parts.ends(vcl_parts.ladder(config))
    assert list(rows) == ["paper", "code"]
    own, other = (vcl.rows(one, {"paper": rows["paper"]}, ["IID"]) for one in (config, natural))
    values = [study.metrics["value"].to_numpy() for study in (own, other)]
    first = own.metrics["seed"].to_numpy() == 0
    np.testing.assert_array_equal(values[0][first], values[1][first], "seed 0 has the natural order anyway")
    assert not np.array_equal(values[0][~first], values[1][~first])
    both = vcl_parts.beside({"drawn": own, "natural": other})
    assert set(both["row"]) == {"paper, drawn", "paper, natural"}


def test_the_floor_names_the_largest_class_and_rows_that_name_one_class_only() -> None:
    values = {("same", 0): 1.0, ("same", 1): 1.0, ("some", 0): 0.0, ("some", 1): 1.0}
    found = [
        {"seed": seed, "row": row, "stage": "tasks", "scope": scope, "metric": metric, "value": value}
        for (row, seed), constant in values.items()
        for scope, floor in (("cil", 20.0), ("taw", 60.0))
        for metric, value in (("constant", constant), ("majority", floor))
    ]
    text = vcl_parts.constant_floor(Study((), pd.DataFrame(found)))
    assert text == "Always naming the largest class: 20.0 %. Collapsed rows: same."
