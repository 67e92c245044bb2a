"""VCL-FPFT experiments at the smallest size: what is shared, what is counted, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fedlib.errors import InputError
from fedlib.experiments import settings, vcl, vcl_oneshot
from fedlib.experiments.settings import VCLSettings
from fedlib.experiments.study import Study
from fedlib.experiments.vcl_scene import Scene, client_run, clients_of
from fedlib.federation.engine import one_thread
from fedlib.methods.oneshot.local_training import train_clients
from fedlib.runs import Store


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDLIB_HOME", str(tmp_path))
    return tmp_path


def tiny(**changes: Any) -> VCLSettings:
    loaded: VCLSettings = settings.load("vcl", "smoke", {"num_clients": 2, "dim": 16} | changes)
    return loaded


def value(study: Study, metric: str, **conditions: object) -> float:
    (found,) = study.select(metric=metric, **conditions)["value"]
    return float(found)


def test_rows_that_differ_at_the_server_share_the_clients_training() -> None:
    wanted = {"mixture": ("paper", {}), "single": ("paper", {"aggregation": "matched"})}
    study = vcl.rows(tiny(), wanted, ["IID"])
    assert set(study.metrics["row"]) == set(wanted)
    assert len([run for run in Store().list() if run.name == "vcl.clients"]) == 1


def test_the_paper_sends_once_and_the_code_twice_with_its_encoder() -> None:
    study = vcl.rows(tiny(), {"paper": ("paper", {}), "code": ("code", {})}, ["IID"])
    assert value(study, "uplinks", row="paper") == 1
    assert value(study, "uplinks", row="code") == 2
    assert value(study, "uplink_bytes", row="code") > value(study, "uplink_bytes", row="paper")


def test_task_aware_accuracy_is_never_below_class_incremental_accuracy() -> None:
    study = vcl.rows(tiny(), {"paper": ("paper", {})}, ["dirichlet_0.3"])
    taw, cil = (value(study, "overall_accuracy", stage="tasks", scope=scope) for scope in ("taw", "cil"))
    assert 0 <= cil <= taw <= 100


def test_stored_clients_open_as_they_were_and_train_to_the_same_bits(tmp_path: Path) -> None:
    scene = Scene.of(tiny())
    first, second = (
        clients_of(client_run(scene, "IID", 0, scene.options("paper"), Store(tmp_path / name)))
        for name in ("a", "b")
    )
    assert list(first) == [0, 1]
    for k in first:
        assert {n: t.tolist() for n, t in first[k].to_tensors().items()} == {
            n: t.tolist() for n, t in second[k].to_tensors().items()
        }


def test_one_shot_methods_are_scored_and_counted_alike() -> None:
    methods = ["fedavg1", "fedisca", "fbpft_vi", "frozen_ncm", "local_only", "logit_ensemble"]
    study = vcl_oneshot.oneshot(tiny(), methods, ["IID"])
    assert set(study.metrics["row"]) == set(methods)
    for method in methods:
        assert 0 <= value(study, "overall_accuracy", row=method) <= 100
        assert value(study, "uplinks", row=method) == (0 if method == "local_only" else 1)
    assert value(study, "uplink_bytes", row="frozen_ncm") < value(study, "uplink_bytes", row="fedisca")


def test_weights_are_the_start_of_every_method(home: Path) -> None:
    scene = Scene.of(tiny())
    known = {name: tensor.contiguous() for name, tensor in scene.encoder(7).state_dict().items()}
    save_file(known, home / "encoder.safetensors")
    config = tiny(weights=str(home / "encoder.safetensors"))
    scene = Scene.of(config)
    for model in (scene.encoder(0), scene.classifier(0, 0).backbone, scene.classifier(1).backbone):
        assert all(torch.equal(value, known[name]) for name, value in model.state_dict().items())
    heads = [scene.classifier(seed).head.weight for seed in (0, 0, 1)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    methods = ["fedavg1", "dafl", "dense", "fedisca", "e_fedisca", "fedpft"]
    study = vcl_oneshot.oneshot(config, methods, ["IID"])
    for method in methods:
        assert 0 <= value(study, "overall_accuracy", row=method) <= 100
    sizes = {method: value(study, "uplink_bytes", row=method) for method in ("fedavg1", "dafl")}
    assert min(sizes.values()) > 4 * scene.encoder(0).num_parameters


def test_without_weights_classifiers_are_those_of_the_baselines_own_training() -> None:
    scene = Scene.of(tiny())
    clients = list(scene.clients("IID", 0).values())
    training = vcl_oneshot.budget(scene.settings, "classifiers")
    with one_thread():
        alone = train_clients([scene.settings.model], clients, scene.problem, training, 0)
        stored = vcl_oneshot.classifier_run(scene, "IID", 0).tensors
    for k, model in enumerate(alone):
        assert all(torch.equal(stored[f"{k}/{name}"], t) for name, t in model.state_dict().items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_tasks": 11}, "num_tasks is 11; allowed: 1 to 10"),
        ({"options": {"epoch": 1}}, "option is 'epoch'.*did you mean 'epochs'"),
        ({"options": {"tau": -1.0}}, "tau is -1.0"),
        ({"partitions": ["dirichlet"]}, "partitions"),
        ({"baselines": {"dafl": {"epoch": 1}}}, "budget is 'epoch'.*did you mean 'epochs'"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_computed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        vcl_oneshot.oneshot(tiny(**changes), ["dafl"], ["IID"])
    assert not Store().list()


def test_unknown_methods_and_partitions_are_refused() -> None:
    with pytest.raises(InputError, match="method is 'dalf'.*did you mean 'dafl'"):
        vcl_oneshot.oneshot(tiny(), ["dalf"])
    with pytest.raises(InputError, match="partition is 'skewed'; allowed: IID, .*dirichlet_<alpha>"):
        vcl.rows(tiny(), {"paper": ("paper", {})}, ["skewed"])
