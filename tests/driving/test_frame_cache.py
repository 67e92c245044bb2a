"""Frames that memory does not hold: the same bits from files, each prepared once; no room is said beforehand."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedlib import seeds
from fedlib.data.nuscenes import LIDAR, DrivingSet
from fedlib.data.roadworld import drives
from fedlib.data.roadworld.drives.recording import Recipe
from fedlib.errors import InputError
from fedlib.experiments import fedcka_detection as detection
from fedlib.experiments import settings
from fedlib.federation import frame_cache
from fedlib.federation.detection import Detection, detection_data, pooled
from fedlib.federation.frame_cache import FrameCache, frames_of
from fedlib.models import detector

RECIPE = Recipe(frames=2, sweeps=1, image_size=(36, 64), beams=16, azimuths=120, reach=16.0, seed=0)
SMALL = detector.Config(
    cells=48, queries=24, image_size=(16, 32), width=16, lidar_width=16, ffn=32, depth_bins=4, image_hidden=16
)
ARRAYS = ("points", "images", "projections", "boxes", "classes", "grid")


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts how often each frame is read from the data set."""
    counted: Counter[str] = Counter()
    read = DrivingSet.frame

    def counting(self: DrivingSet, token: str, **options: object) -> object:
        counted[token] += 1
        return read(self, token, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(DrivingSet, "frame", counting)
    return counted


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_cache, "IN_MEMORY", 0)


def test_frames_from_files_are_the_same_bits_and_are_prepared_once(
    generated: DrivingSet, prepared: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = generated.samples("A", "train")
    task = Detection(SMALL)
    inside = detection_data(generated, tokens, SMALL)
    assert isinstance(inside.frames, tuple)
    assert prepared == Counter(tokens)
    assert not list(frame_cache.FrameCache(generated, tokens, SMALL, 2).folder.glob("*"))
    monkeypatch.setattr(frame_cache, "IN_MEMORY", 0)
    prepared.clear()
    stored = detection_data(generated, tokens, SMALL)
    assert isinstance(stored.frames, FrameCache)
    assert prepared == Counter(tokens[:1]), "for its size; the others wait until they are wanted"
    prepared.clear()

    def step(data: object) -> tuple[float, torch.Tensor]:
        model = task.build_model(0).train()
        with seeds.torch_global(3, "test"):
            loss = task.loss(model, data.batch(torch.tensor([2, 0])))  # type: ignore[attr-defined]
        loss.backward()
        return float(loss.detach()), torch.cat(
            [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        )

    (expected, slope), (found, same) = step(inside), step(stored)
    assert expected == found
    assert torch.equal(slope, same)
    assert prepared == Counter([tokens[0], tokens[2]])
    every = torch.arange(len(tokens))
    for one, two in zip(inside.batch(every), stored.batch(every), strict=True):
        for name in ARRAYS:
            a, b = getattr(one, name), getattr(two, name)
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
    again = detection_data(generated, tokens, SMALL)
    again.batch(every)
    assert prepared == Counter(tokens), "nothing is prepared a second time"
    (file,) = {path.suffix for path in again.frames.folder.iterdir()} - {".lock"}  # type: ignore[attr-defined]
    assert file == ".npz"
    with np.load(again.frames.path(tokens[0])) as archive:  # type: ignore[attr-defined]
        assert "grid" not in archive.files


def test_parts_of_frames_in_files_stay_in_files(
    generated: DrivingSet, prepared: Counter[str], no_memory: None
) -> None:
    parts = [detection_data(generated, generated.samples(domain, "val"), SMALL) for domain in "AE"]
    both = pooled(parts)
    assert both.tokens == (*parts[0].tokens, *parts[1].tokens)
    few = both.subset(np.array([5, 1]))
    assert isinstance(few.frames, FrameCache)
    assert sum(prepared.values()) == 2, "one of each part, for its size"
    first, second = few.batch(torch.tensor([0, 1]))
    np.testing.assert_array_equal(first.points, parts[1].frames[2].points)
    np.testing.assert_array_equal(second.points, parts[0].frames[1].points)
    assert len(few.frames[1:]) == 1
    assert few.truth.tokens == few.tokens


def test_other_tables_sweeps_or_sizes_have_files_of_their_own(generated: DrivingSet) -> None:
    tokens = generated.samples("A", "val")
    cache = FrameCache(generated, tokens, SMALL, 2)
    other = DrivingSet(
        generated.name, generated.folder, generated.version, replace(generated.card, checksum="x")
    )
    folders = {
        cache.folder,
        replace(cache, driving=other).folder,
        replace(cache, sweeps=3).folder,
        replace(cache, config=replace(SMALL, image_size=(24, 32))).folder,
        replace(cache, config=replace(SMALL, reach=12.0)).folder,
    }
    assert len(folders) == 5
    assert replace(cache, config=replace(SMALL, queries=9, cells=96)).folder == cache.folder


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_file_is_prepared_again(
    generated: DrivingSet,
    prepared: Counter[str],
    no_memory: None,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    token = generated.samples("E", "val")[0]
    data = detection_data(generated, [token], SMALL)
    before = data.frames[0]
    prepared.clear()
    path = data.frames.path(token)  # type: ignore[attr-defined]
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes({"cut": content[:1500], "changed": content, "empty": b""}[damage])
    with caplog.at_level(logging.WARNING):
        after = data.frames[0]
    assert prepared[token] == 1
    assert "is damaged" in caplog.text
    np.testing.assert_array_equal(before.points, after.points)
    _ = data.frames[0]
    assert prepared[token] == 1


def test_a_missing_sweep_is_refused_before_anything_is_stored(
    opened: Callable[[], DrivingSet], no_memory: None
) -> None:
    driving = opened()
    tokens = driving.samples("A", "train")
    sample = driving.devkit.get("sample", tokens[2])
    newest = driving.devkit.get("sample_data", sample["data"][LIDAR])
    gone = driving.folder / driving.devkit.get("sample_data", newest["prev"])["filename"]
    gone.unlink()
    with pytest.raises(InputError, match=f"1 files of .* missing or truncated, the first is .*{gone.name}"):
        detection_data(driving, tokens, SMALL)
    assert not FrameCache(driving, tokens, SMALL, 2).folder.exists()
    assert len(detection_data(driving, tokens, SMALL, sweeps=1)) == 3


def test_a_disk_without_room_is_refused_with_what_is_needed_and_what_is_free(
    generated: DrivingSet, no_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = generated.samples("A", "val")
    driving = DrivingSet("roomless", generated.folder, generated.version, generated.card)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10_000))
    with pytest.raises(
        InputError, match=r"roomless need 0\.0 GB more in .*frames-roomless.*allowed: the 0\.0 GB"
    ):
        detection_data(driving, tokens, SMALL)
    cache = FrameCache(driving, tokens, SMALL, 2)
    assert not list(cache.folder.glob("*.npz"))
    stored = sum(getattr(cache.read(tokens[0]), name).nbytes for name in ARRAYS[:-1])
    assert frames_of(driving) == 12
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=12 * stored))
    assert len(detection_data(driving, tokens, SMALL).batch(torch.tensor([0]))) == 1
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=11 * stored))
    assert len(detection_data(driving, tokens, SMALL)) == 3, "one of twelve is there"


def test_a_whole_comparison_from_files_has_the_same_bits_with_any_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {split: dict.fromkeys("ABCDE", 1) for split in ("train", "val", "warm")}
    drives.write(tmp_path / "root", scenes=counts, recipe=RECIPE, processes=1)
    driving = DrivingSet(drives.NAME, tmp_path / "root", drives.VERSION, drives.CARD)
    monkeypatch.setattr(detection.data, "driving", lambda name, **options: driving)
    monkeypatch.setitem(detector.PRESETS, "tiny", SMALL)
    planned = settings.load("fedcka", "smoke").for_scenes().model_copy(update={"inputs": 2})
    rows = []
    for bound, workers in ((2**31, 1), (0, 1), (0, 2)):
        home = tmp_path / f"home-{bound}-{workers}"
        monkeypatch.setattr(frame_cache, "IN_MEMORY", bound)
        monkeypatch.setenv("FEDLIB_WORKERS", str(workers))
        monkeypatch.setenv("FEDLIB_HOME", str(home))
        study = detection.compare(planned, ["centralized", "fedcka"])
        rows.append([(run.path / "metrics.csv").read_bytes() for run in study.runs])
        assert len(list(home.glob("prepared/frames-*/*.npz"))) == (0 if bound else 30)
    assert rows[0] == rows[1] == rows[2]
