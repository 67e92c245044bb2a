"""The generated root: complete, exact, deterministic, and different from domain to domain as documented."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedlib import data, seeds
from fedlib.data import prepared
from fedlib.data.nuscenes import CAMERAS, CLASSES, DOMAINS, LIDAR, TABLES, DrivingSet
from fedlib.data.roadworld import drives
from fedlib.data.roadworld.camera import look_at
from fedlib.data.roadworld.drives import conditions, recording, rig, scan, traffic
from fedlib.data.roadworld.solids import box
from fedlib.data.roadworld.world import Body, Part, Placed, World
from fedlib.errors import InputError

SMALL = recording.Recipe(frames=2, sweeps=1, image_size=(16, 32), beams=8, azimuths=60, reach=12.0, seed=0)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def table(folder: Path, name: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads((folder / drives.VERSION / f"{name}.json").read_text())
    return records


# --- the root ---------------------------------------------------------------------------------------------------


def test_every_reference_between_tables_leads_somewhere(generated_folder: Path) -> None:
    tables = {name: table(generated_folder, name) for name in TABLES}
    known = {name: {record["token"] for record in records} for name, records in tables.items()}
    assert all(len(known[name]) == len(tables[name]) for name in TABLES)
    chained = ("sample", "sample_data", "sample_annotation")
    for name, records in tables.items():
        for item in records:
            for field, value in item.items():
                target = field.removesuffix("_token")
                target = {"first_sample": "sample", "last_sample": "sample"}.get(target, target)
                target = target.replace("first_annotation", "sample_annotation")
                target = target.replace("last_annotation", "sample_annotation")
                if field.endswith("_token") and target in known:
                    assert value in known[target], (name, field)
                if field == "attribute_tokens":
                    assert set(value) <= known["attribute"]
                if field in ("prev", "next") and name in chained:
                    assert value == "" or value in known[name]
                assert value is not None
    for item in (*tables["sample_data"], *tables["map"]):
        assert (generated_folder / item["filename"]).is_file()


def test_chains_run_through_all_frames_at_two_hertz(generated: DrivingSet) -> None:
    database = generated.devkit
    for scene in generated.scenes.values():
        stamps = [database.get("sample", token)["timestamp"] for token in scene.samples]
        assert np.diff(stamps).tolist() == [500_000, 500_000]
        first = database.get("sample", scene.samples[0])
        for channel in (*CAMERAS, LIDAR):
            key, count = first["data"][channel], 0
            while key:
                item = database.get("sample_data", key)
                key, count = item["next"], count + 1
            assert count == (5 if channel == LIDAR else 3)  # a sweep lies between key frames
    for item in database.instance:
        assert item["nbr_annotations"] == 3


def test_the_devkit_renders_points_pictures_and_the_map(generated: DrivingSet, tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    sample = generated.devkit.get("sample", generated.samples("A", "val")[1])
    generated.devkit.render_sample_data(
        sample["data"][LIDAR], nsweeps=2, underlay_map=True, out_path=str(tmp_path / "a.png"), verbose=False
    )
    generated.devkit.render_sample_data(
        sample["data"]["CAM_FRONT"], out_path=str(tmp_path / "b.png"), verbose=False
    )
    plt.close("all")
    for name in ("a.png", "b.png"):
        assert np.asarray(Image.open(tmp_path / name)).std() > 5


def test_the_car_drives_on_the_road_of_its_map(generated: DrivingSet) -> None:
    for scene in generated.scenes.values():
        record_ = next(item for item in generated.devkit.scene if item["name"] == scene.name)
        log = generated.devkit.get("log", record_["log_token"])
        mask = generated.devkit.get("map", log["map_token"])["mask"]
        for token in scene.samples:
            x, y = generated.ego_to_global(token)[:2, 3]
            assert mask.is_on_mask(x, y).all()
            away = generated.ego_to_global(token) @ [0, 30, 0, 1]
            assert not mask.is_on_mask(away[0], away[1]).any()


def test_velocities_are_those_of_the_motion_and_attributes_fit(generated: DrivingSet) -> None:
    from nuscenes.eval.detection.utils import detection_name_to_rel_attributes

    speeds: dict[str, set[float]] = {}
    for domain in ("A", "E"):
        for token in generated.samples(domain, "train"):
            labels = generated.labels(token, in_global=True)
            assert np.isfinite(labels.boxes).all()
            for row, kind, attribute, name in zip(
                labels.boxes, labels.classes, labels.attributes, labels.tokens
            ):
                allowed = detection_name_to_rel_attributes(CLASSES[kind])
                word = data.nuscenes.ATTRIBUTES[attribute] if attribute >= 0 else ""
                assert word in (allowed or [""])
                speed = float(np.hypot(*row[7:9]))
                speeds.setdefault(
                    generated.devkit.get("sample_annotation", name)["instance_token"], set()
                ).add(round(speed, 6))
                if word.endswith("moving"):
                    assert speed > 0.2
                    np.testing.assert_allclose(
                        row[7:9], speed * np.array([np.cos(row[6]), np.sin(row[6])]), atol=1e-6
                    )
                if word in ("vehicle.parked", "vehicle.stopped", "pedestrian.standing"):
                    assert speed < 1e-6
    assert all(len(values) == 1 for values in speeds.values())


def test_point_counts_are_those_of_the_stored_cloud(generated: DrivingSet) -> None:
    from nuscenes.utils.data_classes import LidarPointCloud
    from nuscenes.utils.geometry_utils import points_in_box

    database = generated.devkit
    for domain in ("A", "E"):
        key = database.get("sample", generated.samples(domain, "val")[0])["data"][LIDAR]
        path, boxes, _ = database.get_sample_data(key)
        points = LidarPointCloud.from_file(path).points[:3]
        for item in boxes:
            counted = int(points_in_box(item, points).sum())
            assert abs(counted - database.get("sample_annotation", item.token)["num_lidar_pts"]) <= 1


def test_files_are_the_same_for_any_number_of_processes(tmp_path: Path) -> None:
    scenes = {"train": {"B": 2}, "val": {"D": 1}}
    for processes in (1, 2):
        drives.write(tmp_path / str(processes), scenes=scenes, recipe=SMALL, processes=processes)
    one, two = contents(tmp_path / "1"), contents(tmp_path / "2")
    assert one == two
    other = dataclasses.replace(SMALL, seed=1)
    drives.write(tmp_path / "other", scenes=scenes, recipe=other, processes=1)
    measured = {name for name in one if name.endswith((".jpg", ".bin"))}
    again = contents(tmp_path / "other")
    assert len(measured) == 3 * (2 * 6 + 2 * 2)
    assert not any(again.get(name) == one[name] for name in measured)


def test_a_scene_does_not_depend_on_how_many_there_are(tmp_path: Path) -> None:
    for folder, count in (("one", 1), ("two", 2)):
        drives.write(tmp_path / folder, scenes={"train": {"A": count}}, recipe=SMALL, processes=1)
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert all(two[name] == content for name, content in one.items() if not name.endswith(".json"))


def test_the_root_is_made_once_checked_and_made_again_when_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(drives.PRESETS, "unit", ({"train": {"E": 1}}, 2))
    options = {"preset": "unit", "image_size": (16, 32), "beams": 8, "azimuths": 60, "sweeps": 0}
    made: list[Path] = []
    write = drives.write
    monkeypatch.setattr(drives, "write", lambda folder, **rest: (made.append(folder), write(folder, **rest)))
    assert data.find("roadworld-drives", **options).where is None
    threads = [threading.Thread(target=lambda: data.driving("roadworld-drives", **options)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    folder = data.find("roadworld-drives", **options).where
    assert folder is not None
    before, checksum = contents(folder), prepared.folder_checksum(folder)
    path = next(folder.glob("samples/CAM_BACK/*.jpg"))
    path.write_bytes(path.read_bytes()[:-1])
    again = data.driving("roadworld-drives", **options)
    assert (again.folder, again.card.checksum) == (folder, checksum)
    assert len(made) == 2
    assert contents(folder) == before
    assert prepared.folder_checksum(folder) == checksum


def test_a_failed_generation_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        prepared.folder_once(tmp_path / "root", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["root.lock"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "huge"}, "preset is 'huge'"),
        ({"frames": 0}, "frames is 0"),
        ({"image_size": (48, 5000)}, "width of image_size is 5000"),
        ({"azimuths": 1.5}, "azimuths is 1.5"),
        ({"reach": 500}, "reach is 500"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        data.find("roadworld-drives", **options)


# --- domains ----------------------------------------------------------------------------------------------------


def drawn(letter: str, number: int) -> list[traffic.Drive]:
    domain = DOMAINS[letter]
    return [traffic.drive(domain, 2, 18.0, 0, seeds.rng(k, "test", letter)) for k in range(number)]


def test_classes_are_absent_as_in_the_paper() -> None:
    assert {letter: len(names) for letter, names in conditions.ABSENT.items()} == {
        "A": 0,
        "B": 0,
        "C": 1,
        "D": 3,
        "E": 6,
    }
    for letter in "CDE":
        kinds = {actor.kind for drive in drawn(letter, 12) for actor in drive.actors}
        assert not kinds & set(conditions.ABSENT[letter])


def test_boston_has_twice_the_cars_and_singapore_three_times_the_motorcycles() -> None:
    boston, singapore = conditions.CITIES["boston"].mix, conditions.CITIES["singapore"].mix
    assert boston["car"] >= 2 * singapore["car"]
    assert singapore["motorcycle"] >= 3 * boston["motorcycle"]
    counts = {
        letter: Counter(actor.kind for drive in drawn(letter, 25) for actor in drive.actors)
        for letter in "AC"
    }
    assert counts["A"]["car"] > 1.5 * counts["C"]["car"]
    assert counts["C"]["motorcycle"] > 1.5 * counts["A"]["motorcycle"]


def test_one_drives_on_the_right_in_boston_and_on_the_left_in_singapore() -> None:
    for letter, side in (("A", -1), ("D", 1)):
        for drive in drawn(letter, 8):
            assert np.sign(drive.ego_y) == side
            for actor in drive.actors:
                along = abs(np.sin(actor.yaw)) < 0.4
                if along and actor.attribute == "vehicle.moving":
                    assert np.sign(np.cos(actor.yaw)) == np.sign(actor.position[1]) * side


def test_no_two_road_users_and_not_the_car_touch_at_any_frame() -> None:
    for drive in drawn("A", 6):
        for time in drive.times.tolist():
            boxes = [actor.placed(time).box[:, :2] for actor in drive.actors]
            ego = np.array([(x, y) for x in (-2.3, 2.3) for y in (-1, 1)]) + drive.ego(time)[:2, 3]
            for k, first in enumerate([ego, *boxes]):
                for second in boxes[k:]:
                    assert separated(first, second)


def separated(first: np.ndarray, second: np.ndarray) -> bool:
    """Say whether a line divides two convex sets of points (tried at every degree)."""
    angle = np.radians(np.arange(180))
    axes = np.stack([np.cos(angle), np.sin(angle)])
    a, b = first @ axes, second @ axes
    return bool(((a.max(axis=0) < b.min(axis=0)) | (b.max(axis=0) < a.min(axis=0))).any())


def test_presets_stand_in_the_proportions_of_nuscenes() -> None:
    for name in ("small", "medium", "full"):
        scenes, _ = drives.PRESETS[name]
        for split in ("train", "val"):
            real = np.array([getattr(domain, split) for domain in DOMAINS.values()], dtype=float)
            own = np.array([scenes[split][letter] for letter in DOMAINS], dtype=float)
            assert np.abs(own / own.sum() - real / real.sum()).max() < 0.09


# --- sensors ----------------------------------------------------------------------------------------------------


def block(x: float, y: float, finish: str = "matt") -> Placed:
    shape = box((-0.5, 0.5), (-2, 2), (0, 3))
    return Placed(Body("thing", [Part("p", shape, (0.5, 0.5, 0.5), finish)]), (x, y, 0.0), 0.0)


def scanned(world: World, rain: bool = False, azimuths: int = 360) -> np.ndarray:
    drive = drawn("A", 1)[0]
    scanner = rig.Scanner(np.array([0, 0, 1.8]), np.eye(3)[:, [1, 0, 2]] * [-1, 1, 1], 24, azimuths, 0.1)
    city = conditions.CITIES["boston"]
    points = scan.sweep(world, scanner, drive.ground, city, rain, range(1, 1), seeds.rng(0))
    points[:, :3] = points[:, :3] @ scanner.rotation.T + scanner.position
    return points


GROUND = Placed(traffic._GROUND.body, (0.0, 0.0, 0.0), 0.0, False)


def test_returns_lie_on_the_surfaces_and_nothing_behind_them_returns() -> None:
    points = scanned(World([GROUND, block(8, 0), block(14, 0)]))
    low = points[np.abs(points[:, 2]) < 0.1]
    assert len(low) > 500
    front = points[(points[:, 2] > 0.3) & (points[:, 0] > 0)]
    assert len(front) > 30
    assert np.abs(front[:, 0] - 7.5).max() < 0.15  # the front of the first; the second is hidden
    shadow = (points[:, 0] > 9) & (np.abs(points[:, 1]) < 1.5) & (points[:, 0] < 12)
    assert not shadow.any()


def test_the_parts_windows_change_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    drive = drawn("C", 1)[0]
    world = drive.world(0.0)
    scanner = rig.Scanner(np.array([0.3, drive.ego_y, 1.9]), np.eye(3), 12, 90, 1.0)
    quick = world.intersect(scanner.position, scanner.rotation, scanner.rays, scanner.windows(world))
    whole = np.tile([0, 12, 0, 90], (len(world.starts) - 1, 1))
    slow = world.intersect(scanner.position, scanner.rotation, scanner.rays, whole)
    np.testing.assert_array_equal(quick.part, slow.part)


def test_bright_things_return_more_and_far_ones_less() -> None:
    lamp, matt = (scanned(World([GROUND, block(8, 0, finish)])) for finish in ("lamp", "matt"))
    far = scanned(World([GROUND, block(30, 0, "matt")]))
    level = [points[points[:, 2] > 0.3][:, 3].mean() for points in (lamp, matt, far)]
    assert level[0] > level[1] > level[2] > 0


def test_rain_takes_returns_away_and_adds_near_ones() -> None:
    world = World([GROUND, block(10, 0), block(40, 10)])
    dry, wet = scanned(world), scanned(world, rain=True)
    assert len(wet) < 0.6 * len(dry)
    assert np.linalg.norm(wet[:, :2], axis=1).max() < 27
    near = np.linalg.norm(wet[:, :3] - [0, 0, 1.8], axis=1) < 3
    assert near.sum() > 100
    assert wet[near, 3].max() <= 13


def test_visibility_is_the_share_that_the_cameras_see() -> None:
    item = block(10, 0)
    grid = item.to_world(recording._GRID * [0.5, 2, 1.5] + [0, 0, 1.5])
    camera = look_at(np.array([0.0, 0, 1.5]), np.array([10.0, 0, 1.5]), 60.0, 96, 48)

    def level(*others: Placed) -> int:
        world = World([GROUND, item, *others])
        hits = world.intersect(camera.position, camera.rotation, camera.rays, camera.windows(world))
        return recording.visibility(grid, 1, [(camera, hits)])

    assert level() == 4
    assert level(block(5, 0)) == 1  # hides it
    assert level(block(5, 40)) == 4  # beside
    assert level(block(9, -2.2)) in (2, 3)
    behind = look_at(np.array([0.0, 0, 1.5]), np.array([-10.0, 0, 1.5]), 60.0, 96, 48)
    world = World([GROUND, item])
    hits = world.intersect(behind.position, behind.rotation, behind.rays, behind.windows(world))
    assert recording.visibility(grid, 1, [(behind, hits)]) == 1


def test_night_is_dark_but_for_what_the_headlights_reach(generated: DrivingSet) -> None:
    frame = generated.frame(generated.samples("E", "train")[0])
    front, side = frame.images[CAMERAS.index("CAM_FRONT")], frame.images[CAMERAS.index("CAM_BACK_LEFT")]
    assert front[24:].mean() > 1.1 * side[24:].mean()
    assert frame.images.mean() < 80


def test_the_cameras_see_what_the_lidar_measures(generated: DrivingSet) -> None:
    frame = generated.frame(generated.samples("A", "train")[0], sweeps=1)
    homogeneous = np.append(frame.points[:, :3], np.ones((len(frame.points), 1)), axis=1)
    shown = np.zeros(len(homogeneous), dtype=bool)
    for projection in frame.projections:
        flat = homogeneous @ projection.T
        pixel = flat[:, :2] / flat[:, 2:3]
        shown |= (flat[:, 2] > 0.5) & (pixel > 0).all(axis=1) & (pixel < [64, 36]).all(axis=1)
    upright = (frame.points[:, 2] > 0.3) & (frame.points[:, 2] < 2) & (np.hypot(*frame.points[:, :2].T) > 6)
    assert shown[upright].mean() > 0.98  # all around: only close to the car are there gaps
