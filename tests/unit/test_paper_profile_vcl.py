"""The profile ``paper`` of VCL-FPFT starts and resumes on a local MedMNIST file, without a GPU."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedlib.errors import InputError
from fedlib.experiments import settings, vcl, vcl_continual, vcl_oneshot, vcl_scene
from fedlib.experiments.settings import VCLSettings
from fedlib.experiments.study import Study
from fedlib.experiments.vcl_pages import PRESET_ROWS
from fedlib.federation.engine import one_thread
from fedlib.methods.continual.registry import METHODS
from fedlib.runs import Store

SHORT: dict[str, Any] = {
    "num_clients": 2, "seeds": 1, "device": "cpu", "weights": None,
    "options": {
        "epochs": 1, "batch_size": 16, "synthetic_per_class": 10, "replay_per_class": 10, "head_epochs": 1,
    },
}  # fmt: skip
# the budgets of the baselines, whose steps are the papers' otherwise
ONE_STEP: dict[str, Any] = {
    "classifiers": {"epochs": 1},
    "baselines": {
        "fedavg": {"rounds": 1}, "fedpft": {"components": 2, "head_epochs": 1},
        "dafl": {"epochs": 1, "iterations": 1, "batch_size": 8, "width": 8},
        "dense": {"epochs": 1, "generator_steps": 1, "batch_size": 8, "width": 8},
        "fedisca": {"epochs": 1, "inversion": {"steps": 1, "batch_size": 8}},
        "e_fedisca": {"epochs": 1, "levels": 1, "inversion": {"steps": 1, "batch_size": 8}},
        "fbpft_vi": {"synthetic_per_class": 5, "head_epochs": 1, "vi_steps": 5},
    },
    "training": {"epochs": 1},
    "continual": {
        "gr": {"iterations": 1, "hidden": 8, "batch_size": 4}, "bir": {"iterations": 1, "hidden": 8},
        "muc_mas": {"side_epochs": 1, "samples": 2}, "eeil": {"tuning_epochs": 1}, "eft": {"epochs": 1},
        "ewc": {"samples": 1}, "rwalk": {"samples": 1}, "mas": {"samples": 1}, "gpm": {"samples": 4},
    },
}  # fmt: skip
ROW: dict[str, Any] = {"paper": ("paper", {})}
# For what does not depend on the network. The paper's takes a second for each method.
SMALL_NETWORK: dict[str, Any] = {"model": "cnn3_bn", "dim": 16}


@pytest.fixture(autouse=True)
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small files in MedMNIST's format, found through FEDLIB_DATA; returns bloodmnist.npz."""
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDLIB_HOME", str(tmp_path / "store"))
    monkeypatch.setenv("FEDLIB_WORKERS", "1")
    folder = tmp_path / "data" / "medmnist"
    folder.mkdir(parents=True)
    write(folder / "octmnist.npz", classes=4, shape=(28, 28), train=20)
    return write(folder / "bloodmnist.npz", classes=8, shape=(28, 28, 3), train=48)


def write(path: Path, classes: int, shape: tuple[int, ...], train: int) -> Path:
    rng = np.random.default_rng(3)
    arrays: dict[str, np.ndarray] = {}
    for split, n in (("train", train), ("val", classes), ("test", classes)):
        labels = np.arange(n, dtype=np.uint8) % classes
        level = labels.reshape(-1, *[1] * len(shape))
        pictures = rng.integers(0, 100, (n, *shape)) + 18 * level
        arrays |= {f"{split}_images": pictures.astype(np.uint8), f"{split}_labels": labels[:, None]}
    np.savez(path, **arrays)
    return path


def short(**changes: Any) -> VCLSettings:
    loaded: VCLSettings = settings.load("vcl", "paper", SHORT | changes)
    return loaded


def killed(config: VCLSettings, module: Any, name: str, when: Callable[..., bool]) -> None:
    """Compute a row in a process that is killed at a call of ``module.name`` with such arguments."""

    def work() -> None:
        torch.set_num_threads(1)
        original = getattr(module, name)

        def deadly(*given: Any, **named: Any) -> Any:
            if when(*given):
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*given, **named)

        setattr(module, name, deadly)
        vcl.rows(config, ROW, ["IID"])

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(timeout=60)
    assert child.exitcode == -signal.SIGKILL


def test_a_process_that_is_killed_at_the_server_loses_no_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = short(**SMALL_NETWORK)
    killed(config, vcl, "aggregate", lambda *given: True)
    (clients,) = Store().list()
    assert clients.name == "vcl.clients"
    made = (clients.path / "metrics.csv").stat().st_mtime_ns

    with one_thread():  # as the child
        resumed = vcl.rows(config, ROW, ["IID"])
        assert (clients.path / "metrics.csv").stat().st_mtime_ns == made, "the clients were not trained again"
        monkeypatch.setenv("FEDLIB_HOME", str(tmp_path / "another-store"))
        whole = vcl.rows(config, ROW, ["IID"])
    assert not whole.runs[0].reused
    pd.testing.assert_frame_equal(resumed.metrics, whole.metrics, check_exact=True)


@pytest.mark.parametrize("encoders", [[], ["cnn3_bn", "vgg8_bn", "wrn16_2"]])
def test_a_process_that_is_killed_in_mid_training_loses_one_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoders: list[str]
) -> None:
    config = short(**SMALL_NETWORK, encoders=encoders, num_clients=3)
    killed(config, vcl_scene, "train_clients", lambda data, *rest: 2 in data)
    trained: list[int] = []
    original = vcl_scene.train_clients

    def noted(data: Any, *rest: Any) -> Any:
        trained.extend(data)
        return original(data, *rest)

    with one_thread():
        monkeypatch.setattr(vcl_scene, "train_clients", noted)
        resumed = vcl.rows(config, ROW, ["IID"])
        assert trained == [2]
        assert not list((tmp_path / "store").rglob("clients")), "kept only while the run is computed"
        monkeypatch.setenv("FEDLIB_HOME", str(tmp_path / "another-store"))
        whole = vcl.rows(config, ROW, ["IID"])
    assert trained == [2, 0, 1, 2]
    pd.testing.assert_frame_equal(resumed.metrics, whole.metrics, check_exact=True)


def scored(study: Study, wanted: set[str]) -> None:
    assert set(study.metrics["row"]) == wanted
    assert study.select(metric="overall_accuracy", scope="cil")["value"].between(0, 100).all()


def test_table_1_starts_with_the_paper_s_network_and_one_message() -> None:
    own = short(train_per_class=2).for_scenario("table_1").for_dataset("bloodmnist")
    assert (own.dataset, own.model, own.dim) == ("medmnist:bloodmnist", "mobilenetv2_attention", 256)
    study = vcl.rows(own, ROW, ["IID"])
    scored(study, {"paper"})
    (uplinks,) = study.select(metric="uplinks")["value"]
    assert uplinks == 1


def test_table_1_starts_in_both_versions() -> None:
    own = short(**SMALL_NETWORK, train_per_class=4).for_scenario("table_1").for_dataset("bloodmnist")
    scored(vcl.rows(own, PRESET_ROWS, ["IID"]), {"vcl", "vcl_code"})


def test_tables_2_and_3_start_with_every_one_shot_method() -> None:
    own = short(**ONE_STEP, **SMALL_NETWORK, train_per_class=4).for_scenario("tables_2_3")
    study = vcl_oneshot.oneshot(own.for_dataset("bloodmnist"), partitions=["IID"])
    scored(study, set(vcl_oneshot.METHODS))


def test_tables_2_and_3_start_with_the_paper_s_network() -> None:
    own = short(**ONE_STEP, train_per_class=2).for_scenario("tables_2_3").for_dataset("bloodmnist")
    scored(vcl_oneshot.oneshot(own, ["dense"], ["IID"]), {"dense"})  # reads the statistics of every BatchNorm


def test_tables_4_and_5_start_with_the_five_backbones() -> None:
    own = short(**ONE_STEP, num_clients=5, train_per_class=2).for_scenario("heterogeneous")
    scored(vcl.rows(own.for_dataset("bloodmnist"), ROW, ["IID"]), {"paper"})


def test_table_6_starts_with_every_continual_method() -> None:
    own = short(**ONE_STEP, **SMALL_NETWORK, train_per_class=2, num_tasks=2).for_scenario("table_6")
    scored(vcl_continual.continual(own.for_dataset("bloodmnist")), set(METHODS))


def test_methods_that_reach_into_layers_start_with_the_paper_s_network() -> None:
    own = short(**ONE_STEP, train_per_class=2, num_tasks=2).for_scenario("table_6")
    inside = ["gpm", "owm", "eft"]  # inputs of layers, and adapters after them
    scored(vcl_continual.continual(own.for_dataset("bloodmnist"), inside), set(inside))


def test_tables_7_and_8_start_with_their_own_order_and_methods() -> None:
    own = short(**ONE_STEP, **SMALL_NETWORK).for_scenario("tables_7_and_8").for_dataset("octmnist")
    study = vcl_continual.continual(own, ["finetune", "owm", "gr", "bir"])
    scored(study, {"finetune", "owm", "gr", "bir"})
    assert study.runs[0].config["class_order"] == [0, 3, 1, 2]
    assert "icarl" not in vcl_continual.allowed(own)


def test_every_scenario_of_the_tables_loads_with_the_paper_s_sets() -> None:
    for name in settings.load("vcl", "paper").scenarios:
        scenario = short().for_scenario(name)
        for key in scenario.datasets:
            own = scenario.for_dataset(key).dataset
            assert own.startswith("medmnist:") or own in ("rsna", "diabetic", "isic"), f"{name}: {key}"


def test_the_profile_as_it_is_wants_a_gpu_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="cuda"):
        vcl.rows(short(device="cuda"), ROW, ["IID"])


def test_without_the_file_it_says_where_to_get_it(copy: Path) -> None:
    copy.unlink()
    with pytest.raises(InputError, match=r"bloodmnist.*medmnist_sets\.py"):
        vcl.rows(short(), ROW, ["IID"])
