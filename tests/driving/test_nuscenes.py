"""Reading nuScenes roots: domains, frames, and what is refused."""

from __future__ import annotations

import csv
import importlib.util
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from fedlib import data, files
from fedlib.data import nuscenes
from fedlib.data.nuscenes import CAMERAS, CLASSES, LIDAR, DrivingSet, corners, domain_of, moved
from fedlib.data.nuscenes.domains import check_published, published
from fedlib.data.nuscenes.sensors import read_sweep
from fedlib.data.nuscenes.statistics import statistics
from fedlib.data.roadworld import drives
from fedlib.data.roadworld.drives.recording import Recipe
from fedlib.errors import InputError
from fedlib.experiments import settings
from fedlib.experiments.fedcka_detection import Scenes

TWENTY_A_SECOND = Recipe(frames=2, sweeps=9, image_size=(16, 16), beams=20, azimuths=90, reach=16.0, seed=0)


def rows() -> list[dict[str, str]]:
    path = Path(nuscenes.__file__).with_name("scene_domains.csv")
    return list(csv.DictReader(path.read_text().splitlines()))


# --- domains --------------------------------------------------------------------------------------------------


def test_the_rule_gives_the_published_domain_of_all_850_scenes() -> None:
    found = {}
    for row in rows():
        words = [
            word
            for word, here in (("Night", row["light"] == "night"), ("rain", row["weather"] == "rain"))
            if here
        ]
        for location in row["location"].split("|"):
            where = location if "-" in location else f"singapore-{location}"
            found[row["scene"]] = domain_of(where, ", ".join([*words, "parked cars"]))
    assert len(found) == 850
    check_published(found, strict_counts=True)


def test_the_splits_are_the_official_ones() -> None:
    from nuscenes.utils.splits import train, val

    assert {name for name, (split, _) in published().items() if split == "train"} == set(train)
    assert {name for name, (split, _) in published().items() if split == "val"} == set(val)


def test_after_rain_counts_as_rain_and_case_does_not_matter() -> None:
    assert domain_of("boston-seaport", "After RAIN, peds") == "B"
    assert domain_of("singapore-queenstown", "night") == "D"
    with pytest.raises(InputError, match="Boston, day, dry"):
        domain_of("boston-seaport", "Night")


def test_another_domain_than_published_is_refused() -> None:
    with pytest.raises(InputError, match=r"scene-0001 is derived as domain A; published: C"):
        check_published({"scene-0001": "A"})
    with pytest.raises(InputError, match=r"domain A has 0 train scenes; published: 265"):
        check_published({}, strict_counts=True)


# --- frames ---------------------------------------------------------------------------------------------------


def test_boxes_of_a_real_frame_hold_the_points_that_are_annotated(real: DrivingSet) -> None:
    (scene,) = real.scenes.values()
    assert (scene.name, scene.domain, scene.split) == ("scene-0061", "C", "train")
    frame = real.frame(scene.samples[0], sweeps=1, image_size=(90, 160))
    labels = frame.labels
    assert len(labels) == 68
    assert abs(frame.points[:, 2][np.abs(frame.points[:, 0]) < 5].min()) < 1.0  # the road is near z = 0
    counted = np.array([inside(frame.points, box).sum() for box in labels.boxes])
    # the annotated boxes lean with the road, ours stand upright in the car's frame: a few points at the edges
    assert np.abs(counted - labels.num_points).sum() < 0.1 * labels.num_points.sum()
    assert (counted == labels.num_points).mean() > 0.6
    assert np.isnan(labels.boxes[:, 7:]).all()  # one frame has no velocity


def test_boxes_of_a_real_frame_are_where_the_devkit_has_them_in_every_camera(real: DrivingSet) -> None:
    from nuscenes.utils.geometry_utils import view_points

    (scene,) = real.scenes.values()
    frame = real.frame(scene.samples[0], images=False)
    own = {token: k for k, token in enumerate(frame.labels.tokens)}
    seen = 0
    for view, channel in enumerate(CAMERAS):
        key = real.devkit.get("sample", frame.token)["data"][channel]
        _, boxes, lens = real.devkit.get_sample_data(key)
        for box in boxes:
            expected = view_points(box.corners(), lens, normalize=True)[:2].T
            points = corners(frame.labels.boxes[[own[box.token]]])[0]
            flat = np.append(points, np.ones((8, 1)), axis=1) @ frame.projections[view].T
            # a box is upright in the car's frame and upright in the world: the car's tilt is the difference
            np.testing.assert_allclose(
                (flat[:, :2] / flat[:, 2:3]).mean(axis=0), expected.mean(axis=0), atol=6
            )
            seen += 1
    assert seen > 20


def test_frames_of_a_generated_root_are_where_the_devkit_has_them(generated: DrivingSet) -> None:
    token = generated.samples("A", "train")[1]
    frame = generated.frame(token, sweeps=2)
    from nuscenes.utils.data_classes import LidarPointCloud

    sample = generated.devkit.get("sample", token)
    cloud, times = LidarPointCloud.from_file_multisweep(generated.devkit, sample, LIDAR, LIDAR, nsweeps=2)
    local = cloud.points[:3].T @ frame.lidar_to_ego[:3, :3].T + frame.lidar_to_ego[:3, 3]
    np.testing.assert_allclose(frame.points[:, :3], local, atol=1e-4)
    np.testing.assert_allclose(frame.points[:, 4], times[0], atol=1e-6)
    np.testing.assert_array_equal(frame.points[:, 3], cloud.points[3])
    boxes = generated.devkit.get_boxes(sample["data"][LIDAR])
    there = moved(frame.labels.boxes, frame.ego_to_global)
    for row, box in zip(there, boxes):
        np.testing.assert_allclose(row[:3], box.center, atol=1e-9)
        np.testing.assert_allclose(row[3:6], box.wlh, atol=1e-9)
        np.testing.assert_allclose(
            corners(row[None])[0][:4].mean(axis=0), box.corners()[:, :4].mean(axis=1), atol=1e-9
        )
        np.testing.assert_allclose(row[7:9], generated.devkit.box_velocity(box.token)[:2], atol=1e-9)


def test_resized_pictures_keep_the_projection(generated: DrivingSet) -> None:
    token = generated.samples("A", "val")[0]
    full, small = generated.frame(token), generated.frame(token, image_size=(18, 32))
    assert full.images.shape == (6, 36, 64, 3)
    assert small.images.shape == (6, 18, 32, 3)
    np.testing.assert_allclose(small.projections[:, :2] * 2, full.projections[:, :2])
    assert abs(small.images.mean() - full.images.mean()) < 3


def test_sweeps_carry_their_age_and_the_first_frame_has_what_there_is(generated: DrivingSet) -> None:
    first, second = generated.samples("A", "train")[:2]
    assert sorted(set(generated.frame(first, sweeps=9, images=False).points[:, 4].tolist())) == [0, 0.25]
    ages = sorted(set(generated.frame(second, sweeps=3, images=False).points[:, 4].tolist()))
    assert ages == [0, 0.25, 0.5]


def test_five_sweeps_of_a_lidar_with_twenty_turns_a_second_are_those_of_the_devkit(tmp_path: Path) -> None:
    from nuscenes.utils.data_classes import LidarPointCloud

    drives.write(tmp_path, scenes={"train": {"A": 1}}, recipe=TWENTY_A_SECOND, processes=1)
    driving = DrivingSet(drives.NAME, tmp_path, drives.VERSION, drives.CARD)
    token = driving.samples("A", "train")[1]
    frame = driving.frame(token, sweeps=5)
    np.testing.assert_allclose(np.unique(frame.points[:, 4]), [0, 0.05, 0.1, 0.15, 0.2], atol=1e-6)
    sample = driving.devkit.get("sample", token)
    cloud, times = LidarPointCloud.from_file_multisweep(driving.devkit, sample, LIDAR, LIDAR, nsweeps=5)
    local = cloud.points[:3].T @ frame.lidar_to_ego[:3, :3].T + frame.lidar_to_ego[:3, 3]
    np.testing.assert_allclose(frame.points[:, :3], local, atol=1e-4)
    np.testing.assert_allclose(frame.points[:, 4], times[0], atol=1e-6)
    assert (np.diff(frame.points[:, 4]) >= 0).all(), "the newest sweep is the first"
    names = {path.parent.parent.name for path in driving.files([token], sweeps=5)}
    assert names == {"samples", "sweeps"}
    assert len(driving.files([token], sweeps=5)) == 5 + len(CAMERAS)


def test_a_frame_without_boxes_is_read(opened: Callable[[], DrivingSet], tmp_path: Path) -> None:
    for name in ("sample_annotation", "instance"):
        (tmp_path / "copy" / "v1.0-synth" / f"{name}.json").write_text("[]")
    driving = opened()
    frame = driving.frame(driving.samples("E", "val")[0])
    assert frame.labels.boxes.shape == (0, 9)
    assert len(frame.points) > 0


def test_statistics_count_what_is_in_the_tables(generated: DrivingSet) -> None:
    a, e = statistics(generated, "train", frames=1)
    assert (a.domain, a.scenes, a.frames, e.domain) == ("A", 1, 3, "E")
    expected = sum(
        int((generated.labels(token).num_points > 0).sum()) for token in generated.samples("A", "train")
    )
    assert sum(a.boxes.values()) == expected
    assert e.brightness < 0.6 * a.brightness
    assert e.points < 0.7 * a.points
    assert set(a.row()) >= set(CLASSES)


def test_a_driving_set_can_be_sent_to_another_process(generated: DrivingSet) -> None:
    again = pickle.loads(pickle.dumps(generated))
    assert again.scenes.keys() == generated.scenes.keys()


# --- what is refused ------------------------------------------------------------------------------------------


def test_a_root_without_a_table_is_named(opened: Callable[[], DrivingSet], tmp_path: Path) -> None:
    (tmp_path / "copy" / "v1.0-synth" / "ego_pose.json").unlink()
    with pytest.raises(InputError, match=r"lacks ego_pose\.json"):
        opened()


def test_a_damaged_table_is_named(opened: Callable[[], DrivingSet], tmp_path: Path) -> None:
    (tmp_path / "copy" / "v1.0-synth" / "log.json").write_text("[{")
    with pytest.raises(InputError, match=r"v1\.0-synth: damaged"):
        _ = opened().devkit


def test_a_missing_map_is_named(opened: Callable[[], DrivingSet], tmp_path: Path) -> None:
    next((tmp_path / "copy" / "maps").iterdir()).unlink()
    with pytest.raises(InputError, match=r"map mask .*png does not exist; unpack the maps again"):
        _ = opened().devkit


@pytest.mark.parametrize("size", [0, 39, 41])
def test_a_truncated_sweep_is_named(opened: Callable[[], DrivingSet], tmp_path: Path, size: int) -> None:
    driving = opened()
    token = driving.samples("A", "val")[1]
    key = driving.devkit.get("sample", token)["data"][LIDAR]
    path = tmp_path / "copy" / driving.devkit.get("sample_data", key)["filename"]
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError, match=f"{path.name} is truncated: {size} bytes"):
        driving.frame(token)
    assert driving.missing_files([token]) == [path]


def test_a_missing_picture_or_sweep_is_named(opened: Callable[[], DrivingSet], tmp_path: Path) -> None:
    driving = opened()
    token = driving.samples("A", "val")[0]
    for path in (tmp_path / "copy" / "samples" / "CAM_BACK").iterdir():
        path.unlink()
    with pytest.raises(InputError, match=r"CAM_BACK__.*jpg is missing"):
        driving.frame(token)
    for path in (tmp_path / "copy" / "samples" / "CAM_FRONT").iterdir():
        path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(InputError, match=r"CAM_FRONT__.*jpg: damaged"):
        driving.frame(token)
    with pytest.raises(InputError, match="is missing"):
        read_sweep(tmp_path / "nowhere.pcd.bin")


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    points = np.zeros((2, 5), dtype=np.float32)
    points[1, 3] = np.nan
    (tmp_path / "x.pcd.bin").write_bytes(points.tobytes())
    with pytest.raises(InputError, match="not finite"):
        read_sweep(tmp_path / "x.pcd.bin")


def test_a_domain_without_a_scene_is_named_and_one_scene_is_enough(generated: DrivingSet) -> None:
    assert len(generated.samples("E", "val")) == 3
    with pytest.raises(InputError, match="domain B has no val scene"):
        generated.samples("B", "val")
    with pytest.raises(InputError, match="domain is 'F'"):
        generated.samples("F", "val")
    with pytest.raises(InputError, match="sweeps is 0"):
        generated.frame("x", sweeps=0)
    with pytest.raises(InputError, match="sample 'x' is not in"):
        generated.frame("x")


def test_a_scene_of_no_domain_is_named(opened: Callable[[], DrivingSet], tmp_path: Path) -> None:
    change(tmp_path / "copy" / "v1.0-synth" / "scene.json", 0, description="Night")
    with pytest.raises(InputError, match=r"synth-A-train-0000: location 'boston-seaport'"):
        _ = opened().scenes


def test_an_absent_copy_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data_scripts/nuscenes_copy\.py"):
        data.driving("nuscenes", root=tmp_path)
    with pytest.raises(InputError, match="version is 'v2'"):
        data.driving("nuscenes", root=tmp_path, version="v2")
    with pytest.raises(InputError, match=r"fedlib\.data\.driving"):
        data.load("nuscenes", root=tmp_path)
    with pytest.raises(InputError, match="option of nuscenes is 'preset'"):
        data.driving("nuscenes", root=tmp_path, preset="tiny")


@pytest.fixture
def script(repo: Path, opened: Callable[[], DrivingSet], tmp_path: Path) -> Callable[..., Result]:
    """Runs the script on a copy in ``tmp_path / "nuscenes"``."""
    opened()
    (tmp_path / "copy").rename(tmp_path / "nuscenes")
    place = importlib.util.spec_from_file_location("script", repo / "data_scripts" / "nuscenes_copy.py")
    assert place is not None and place.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    app = typer.Typer()
    app.command()(module.main)
    return lambda *options: CliRunner().invoke(app, ["--root", str(tmp_path), *options])


def test_the_script_describes_a_copy_and_counts_what_is_missing(
    script: Callable[..., Result], tmp_path: Path
) -> None:
    done = script()
    assert done.exit_code == 0, done.stderr
    assert "A train     1 scenes,      3 frames" in done.stdout
    for path in list((tmp_path / "nuscenes" / "samples" / "CAM_FRONT").iterdir())[:2]:
        path.unlink()
    done = script()
    assert done.exit_code == 1
    assert "CAM_FRONT: 2 of 12 files missing or truncated" in done.stderr


def test_a_copy_without_the_sweeps_that_training_joins_is_not_in_order(
    script: Callable[..., Result], tmp_path: Path
) -> None:
    root = tmp_path / "nuscenes"
    lidar = sorted((root / "sweeps" / LIDAR).iterdir())
    lidar[0].write_bytes(lidar[0].read_bytes()[:30])
    done = script()
    assert done.exit_code == 1
    assert f"sweeps/{LIDAR}: 1 of 12 files missing or truncated (first: {lidar[0]}" in done.stderr
    shutil.rmtree(root / "sweeps")
    done = script()
    assert done.exit_code == 1
    assert f"sweeps/{LIDAR}: 12 of 12 files missing" in done.stderr
    assert "blobs of sweeps" in done.stderr
    driving = data.driving("nuscenes", root=tmp_path)
    token = driving.samples("A", "train")[1]
    assert len(driving.missing_files([token], sweeps=5)) == 2, "the third sweep before it is a key frame"
    assert len(driving.missing_files([token])) == 1
    done = script("--sweeps", "1")
    assert done.exit_code == 0, "one sweep is the key frame's own"
    assert script("--sweeps", "0").exit_code != 0


def test_another_table_is_another_data_set_and_another_run(
    opened: Callable[[], DrivingSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened()
    planned = settings.load("fedcka", "smoke", dataset="nuscenes", dataset_options={}).for_scenes()
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "copy"))
    read = []
    sha256 = files.sha256
    monkeypatch.setattr(files, "sha256", lambda path: read.append(path.name) or sha256(path))

    def key() -> tuple[str, str]:
        scenes = Scenes.of(planned)
        return scenes.driving.card.checksum, scenes.spec("x", {}).key

    first = key()
    assert len(first[0]) == 64
    assert sorted(read) == sorted([*(f"{name}.json" for name in nuscenes.TABLES), "splits.json"])
    assert key() == first
    other = tmp_path / "copy" / "v1.0-synth"
    (other / "lidarseg.json").write_text("[]")
    assert key() == first, "tables of other tasks are not read"
    change(other / "sample_annotation.json", 0, num_lidar_pts=123)
    changed = key()
    assert changed[0] != first[0]
    assert changed[1] != first[1]
    assert nuscenes.CARD.checksum == ""


def change(path: Path, number: int, **fields: Any) -> None:
    records = json.loads(path.read_text())
    records[number] |= fields
    path.write_text(json.dumps(records))


def inside(points: np.ndarray, box: np.ndarray) -> np.ndarray:
    c, s = np.cos(box[6]), np.sin(box[6])
    local = (points[:, :3] - box[:3]) @ np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    return (np.abs(local) <= box[[4, 3, 5]] / 2).all(axis=1)
