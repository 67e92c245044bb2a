"""The profile ``paper`` of VCL-FPFT starts and resumes on a local MedMNIST file, without a GPU."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedlib.errors import InputError
from fedlib.experiments import settings, vcl
from fedlib.experiments.settings import VCLSettings
from fedlib.runs import Store

SHORT: dict[str, Any] = {
    "num_clients": 2, "seeds": 1, "device": "cpu", "weights": None,
    "options": {
        "epochs": 1, "batch_size": 16, "synthetic_per_class": 10, "replay_per_class": 10, "head_epochs": 1,
    },
}  # fmt: skip
ROW: dict[str, Any] = {"paper": ("paper", {})}
KILLED_AFTER_THE_CLIENTS = f"""
import os, signal
from fedlib.experiments import settings, vcl
vcl.aggregate = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
vcl.rows(settings.load("vcl", "paper", {SHORT!r}), {ROW!r}, ["IID"])
"""


@pytest.fixture(autouse=True)
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small bloodmnist.npz in MedMNIST's format, found through FEDLIB_DATA."""
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDLIB_HOME", str(tmp_path / "store"))
    monkeypatch.setenv("FEDLIB_WORKERS", "1")
    rng = np.random.default_rng(3)
    arrays: dict[str, np.ndarray] = {}
    for split, n in (("train", 96), ("val", 16), ("test", 32)):
        labels = np.arange(n, dtype=np.uint8) % 8
        pictures = rng.integers(0, 100, (n, 28, 28, 3)) + 18 * labels[:, None, None, None]
        arrays |= {f"{split}_images": pictures.astype(np.uint8), f"{split}_labels": labels[:, None]}
    path = tmp_path / "data" / "medmnist" / "bloodmnist.npz"
    path.parent.mkdir(parents=True)
    np.savez(path, **arrays)
    return path


def short(**changes: Any) -> VCLSettings:
    loaded: VCLSettings = settings.load("vcl", "paper", SHORT | changes)
    return loaded


def test_it_runs_with_the_paper_s_network_and_a_killed_process_loses_no_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (short().dataset, short().model, short().dim) == (
        "medmnist:bloodmnist",
        "mobilenetv2_attention",
        256,
    )
    child = subprocess.run([sys.executable, "-c", KILLED_AFTER_THE_CLIENTS], capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL, child.stderr
    (clients,) = Store().list()
    assert clients.name == "vcl.clients"
    made = (clients.path / "metrics.csv").stat().st_mtime_ns

    resumed = vcl.rows(short(), ROW, ["IID"])
    assert (clients.path / "metrics.csv").stat().st_mtime_ns == made, "the clients were not trained again"
    monkeypatch.setenv("FEDLIB_HOME", str(tmp_path / "another-store"))
    whole = vcl.rows(short(), ROW, ["IID"])
    assert not whole.runs[0].reused
    pd.testing.assert_frame_equal(resumed.metrics, whole.metrics, check_exact=True)
    (uplinks,) = resumed.select(metric="uplinks")["value"]
    assert uplinks == 1
    assert resumed.select(metric="overall_accuracy", scope="cil")["value"].between(0, 100).all()


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
