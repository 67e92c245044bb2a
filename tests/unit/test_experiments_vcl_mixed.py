"""Clients with different architectures, and reduced data, at the smallest size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from torch import nn

from fedlib import models
from fedlib.errors import InputError
from fedlib.experiments import settings, vcl, vcl_mixed, vcl_oneshot
from fedlib.experiments.settings import VCLSettings
from fedlib.experiments.vcl_scene import Scene
from fedlib.report.register import lookup
from fedlib.report.sides import sides
from fedlib.runs import Store


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDLIB_HOME", str(tmp_path))
    monkeypatch.setenv("FEDLIB_WORKERS", "1")
    return tmp_path


def mixed(**changes: Any) -> VCLSettings:
    base = {"num_clients": 2, "dim": 16, "encoders": ["cnn3", "cnn3_bn"], "train_per_class": 8}
    loaded: VCLSettings = settings.load("vcl", "smoke", base | changes)
    return loaded


def test_each_client_has_its_own_architecture_and_all_end_in_one_space() -> None:
    scene = Scene.of(mixed())
    first, second = (scene.encoder(0, k) for k in (0, 1))
    assert first.num_parameters != second.num_parameters
    assert first.feature_dim == second.feature_dim == 16
    study = vcl.rows(mixed(), {"vcl": ("paper", {})}, ["IID"])
    each = study.select(stage="encoders", scope="cil").set_index("metric")["value"]
    assert set(each.index) == {"0/cnn3", "1/cnn3_bn"}
    (mean,) = study.select(stage="tasks", scope="cil", metric="overall_accuracy")["value"]
    assert mean == pytest.approx(each.mean())
    assert [run.name for run in Store().list()] == ["vcl.row"]  # large encoders are not stored


def test_clients_of_one_architecture_give_the_same_whether_listed_or_not() -> None:
    listed = mixed(encoders=["cnn3_bn", "cnn3_bn"])
    plain = mixed(encoders=[])
    wanted: dict[str, vcl.Row] = {"vcl": ("paper", {})}
    one, other = (vcl.rows(own, wanted, ["IID"]).select(stage="tasks") for own in (listed, plain))
    assert one["value"].tolist() == other["value"].tolist()


@pytest.mark.parametrize("space", ["avg", "frozen"])
def test_spaces_that_need_one_architecture_are_refused_for_several(space: str) -> None:
    with pytest.raises(InputError, match=f"shared_space '{space}'.*allowed with several architectures"):
        vcl.rows(mixed(), {"row": ("paper", {"shared_space": space})}, ["IID"])
    assert not Store().list()


def test_one_shot_methods_use_the_clients_architectures_or_refuse_them() -> None:
    study = vcl_oneshot.oneshot(mixed(), ["logit_ensemble"], ["IID"])
    assert len(study.runs) == 1
    with pytest.raises(InputError, match="method 'fedavg1' needs one architecture"):
        vcl_oneshot.oneshot(mixed(), ["fedavg1"], ["IID"])


def test_reduced_data_are_part_of_a_runs_key() -> None:
    scene, whole = Scene.of(mixed(image_size=8)), Scene.of(mixed(train_per_class=None))
    assert len(scene.train) == 80 < len(whole.train)
    assert scene.spec("x", scene.record(0)).key != whole.spec("x", whole.record(0)).key


def test_pages_find_both_kinds_of_clients_and_every_backbone() -> None:
    few = {"num_clients": 2, "encoders": ["cnn3", "cnn3_bn"], "train_per_class": 8, "dim": 16}
    few |= {"partitions": ["IID"], "datasets": {"digits": {}}, "model": "cnn3_bn"}
    config: VCLSettings = settings.load(
        "vcl", "smoke", {"scenarios": {"heterogeneous": few, "homogeneous": few | {"encoders": []}}}
    )
    study = vcl_mixed.spaces(config, ["vcl", "nothing shared", "frozen random encoders"])
    others = vcl_mixed.one_shot(config, ["logit_ensemble"])
    frame = vcl_mixed.by_clients(study, others)
    methods = {"vcl", "nothing shared", "frozen random encoders", "fbpft_vi", "logit_ensemble"}
    assert set(frame["method"]) == methods
    seeds = pd.concat([frame.assign(seed=seed) for seed in range(3)])
    for rule in lookup("VCL-9").parts:
        assert len(sides(rule, seeds)) == 3
    assert set(vcl_mixed.each_backbone(study)["backbone"]) == {"cnn3", "cnn3_bn"}


def test_weights_of_torchvision_are_left_out_where_it_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def embedder(name: str, **given: Any) -> nn.Module:
        asked[name] = given["weights"]
        return nn.Identity()

    monkeypatch.setattr(models, "embedder", embedder)
    scene = Scene.of(mixed(encoders=["vgg16_bn", "vgg8_bn"], weights="torchvision"))
    for client in (0, 1):
        scene.encoder(0, client)
    assert asked == {"vgg16_bn": "torchvision", "vgg8_bn": None}
