"""The profile ``paper`` of MPT starts, runs and resumes on a small copy of nuImages, without a GPU."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from roots import write_nuimages

from fedlib.errors import InputError
from fedlib.experiments import mpt, settings
from fedlib.runs import Store

SHORT: dict[str, Any] = {
    "rounds": 2, "departure_round": 1, "num_clients": 2, "seeds": 1, "remaining_fractions": [0.5],
    "dataset_options": {"size": 32}, "device": "cpu",
}  # fmt: skip
METHODS = ["mpt", "ncm"]
KILLED_AFTER_ONE_ROUND = f"""
import os, signal
from fedlib.experiments import mpt, settings
from fedlib.federation import rounds
whole_round = rounds._Loop.next_round
def one_round(loop, *given):
    if loop.done == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    whole_round(loop, *given)
rounds._Loop.next_round = one_round
mpt.tracking(settings.load("mpt", "paper", {SHORT!r}), {METHODS!r})
"""


@pytest.fixture(autouse=True)
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small nuImages, found through FEDLIB_DATA."""
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDLIB_WORKERS", "1")
    return write_nuimages(tmp_path / "data" / "nuimages", pictures=8)


def short(**changes: Any) -> Any:
    return settings.load("mpt", "paper", SHORT | changes)


def test_two_rounds_run_and_a_killed_process_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (short().dataset, short().rare_classes) == ("nuimages", ("truck",))
    child = subprocess.run([sys.executable, "-c", KILLED_AFTER_ONE_ROUND], capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert list(Store().unfinished()), "what the killed process had done is there"
    resumed = mpt.tracking(short(), METHODS)
    assert not list(Store().unfinished())

    monkeypatch.setenv("FEDLIB_HOME", str(tmp_path / "another-store"))
    whole = mpt.tracking(short(), METHODS)
    assert not whole.runs[0].reused
    pd.testing.assert_frame_equal(resumed.metrics, whole.metrics, check_exact=True)
    after = resumed.select(metric="rare_f1", method="mpt", phase="after")
    assert set(after["round"]) == {2}
    assert after["value"].between(0, 1).all()


def test_all_four_backbones_start_and_keep_nothing_but_their_numbers() -> None:
    changes = {"backbones": {name: {"keep_backbones": False} for name in short().backbones}}
    study = mpt.over_backbones(short(**changes), ["ncm"])
    assert sorted(set(study.metrics["backbone"])) == ["cnn3", "mobilenet_v3_small", "resnet18", "vit_tiny"]
    assert {run.name for run in Store().list()} == {"mpt.tracking"}


def test_mixed_precision_is_an_option_with_runs_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        plain, mixed = mpt.tracking(short(), ["ncm"]), mpt.tracking(short(bf16=True), ["ncm"])
        assert plain.runs[0].key != mixed.runs[0].key
        assert mixed.metrics["value"].notna().all()
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="bf16 is True, but this processor has no bfloat16 arithmetic"):
        mpt.tracking(short(bf16=True), METHODS)


def test_the_profile_as_it_is_wants_a_gpu_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="device is 'cuda', but no GPU is found; allowed here: cpu"):
        mpt.tracking(settings.load("mpt", "paper"))
    assert not Store().list()


def test_without_the_paper_s_data_it_says_where_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "empty"))
    with pytest.raises(InputError, match=r"nuimages is not in .*nuscenes.org"):
        mpt.tracking(short())
