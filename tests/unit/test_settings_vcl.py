"""Settings of VCL-FPFT: data sets in the paper's names, class orders, refusals before anything is computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedlib import data
from fedlib.data.class_tasks import task_split
from fedlib.data.lossy_partition import LossySplit
from fedlib.errors import InputError
from fedlib.experiments import settings, vcl, vcl_oneshot
from fedlib.experiments.vcl_scene import Scene
from fedlib.report import register


@pytest.mark.parametrize("profile", settings.PROFILES)
def test_every_planned_data_set_exists_and_has_enough_classes(profile: str) -> None:
    config = settings.load("vcl", profile)
    assert config.datasets
    for name in config.datasets:
        own = config.for_dataset(name)
        card = data.card(own.dataset)
        assert card.kind == ("real" if profile == "paper" else "surrogate")
        assert own.seeds == config.seeds


def test_generated_sets_stand_under_the_names_of_the_papers_tables() -> None:
    tables = {
        value
        for entry in register.select("vcl", ["claim"])
        for rule in entry.parts
        for value in rule.where.get("dataset", [])
    }
    assert tables
    assert tables - set(settings.load("vcl", "paper").datasets) == set()


def test_a_changed_data_set_is_checked_like_the_settings() -> None:
    with pytest.raises(InputError, match="digits.*num_tasks"):
        settings.load("vcl", "quick", {"datasets": {"digits": {"num_tasks": 0}}})
    with pytest.raises(InputError, match="allowed: bloodmnist"):
        settings.load("vcl", "quick").for_dataset("blood")


def test_a_class_order_of_the_settings_comes_before_that_of_the_seed() -> None:
    base = {"dataset": "cells:oct", "dataset_options": {"train_images": 200}, "num_tasks": 3}
    scene = Scene.of(settings.load("vcl", "smoke", base | {"class_order": [0, 3, 1, 2]}))
    # Verma et al. 2023: {CNV, normal}, {DME}, {drusen}
    assert scene.tasks(0) == scene.tasks(4) == task_split((0, 3, 1, 2), 3) == ((0, 3), (1,), (2,))
    free = Scene.of(settings.load("vcl", "smoke", base))
    assert free.tasks(0) == ((0, 1), (2,), (3,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class_order": [0, 1, 2]}, "each of 0 to 3 once"),
        ({"class_order": [0, 1, 2, 2]}, "each of 0 to 3 once"),
        ({"num_tasks": 5}, "num_tasks is 5; allowed: 1 to 4"),
    ],
)
def test_orders_and_tasks_that_do_not_fit_are_refused(changes: dict[str, object], message: str) -> None:
    base = {"dataset": "cells:oct", "dataset_options": {"train_images": 200}}
    with pytest.raises(InputError, match=message):
        Scene.of(settings.load("vcl", "smoke", base | changes))


def test_a_row_on_the_code_split_says_what_was_lost_and_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDLIB_HOME", str(tmp_path))
    monkeypatch.setenv("FEDLIB_WORKERS", "1")
    config = settings.load("vcl", "smoke", {"partitions": ["dirichlet_code_0.3", "IID"]})
    metrics = vcl.rows(config, {"vcl": ("paper", {})}).metrics
    facts = metrics[metrics["stage"] == "partition"].set_index("metric")
    assert set(facts["partition"]) == {"dirichlet_code_0.3"}
    split = Scene.of(config).partition("dirichlet_code_0.3", 0)
    assert isinstance(split, LossySplit)
    assert facts.loc["coverage", "value"] == split.coverage < 1
    assert facts.loc["duplicates", "value"] == split.duplicates


@pytest.mark.parametrize("profile", settings.PROFILES)
def test_every_scenario_of_a_profile_is_planned_with_sets_that_exist(profile: str) -> None:
    config = settings.load("vcl", profile)
    for name in config.scenarios:
        own = config.for_scenario(name)
        assert own.scenarios == {}
        for planned in own.variants():
            assert planned in config.variants()
            assert data.card(planned.dataset).kind
    with pytest.raises(InputError, match="scenario is 'other'"):
        config.for_scenario("other")


def test_clients_have_one_encoder_each() -> None:
    with pytest.raises(InputError, match="encoders are 2; allowed: none, or 5"):
        Scene.of(settings.load("vcl", "smoke", {"encoders": ["cnn3", "cnn3_bn"]}))


def test_large_images_are_synthesised_as_their_authors_do() -> None:
    plan = settings.load("vcl", "paper").for_scenario("tables_2_3")
    for name, wanted in (("bloodmnist", (500, 256, 2)), ("rsna", (1000, 50, 30)), ("isic", (1000, 50, 30))):
        for method in ("fedisca", "e_fedisca"):
            made = vcl_oneshot.budget(plan.for_dataset(name), method).inversion
            assert (made.steps, made.batch_size, made.shift) == wanted, f"{name}: {method}"
