"""The generated street: its geometry, what rays meet, and that its pictures are the same everywhere."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from nuscenes.eval.detection.constants import DETECTION_NAMES

from fedlib import data, seeds
from fedlib.data import prepared, roadworld
from fedlib.data.roadworld import cars, scenes, tasks
from fedlib.data.roadworld.camera import look_at
from fedlib.data.roadworld.solids import Solid, ball, box, extrude, rod, turned
from fedlib.data.roadworld.world import Body, Part, Placed, World
from fedlib.errors import InputError

# widths, lengths and heights in metres that a road user of each class can have
SIZES = {
    "car": ((1.5, 2.5), (3.3, 6.2), (1.1, 2.6)),
    "truck": ((1.6, 3.2), (4.3, 17.0), (1.5, 4.4)),
    "bus": ((2.0, 3.0), (5.8, 14.5), (2.4, 4.8)),
    "trailer": ((1.7, 2.8), (2.7, 13.3), (1.2, 4.1)),
    "construction_vehicle": ((0.8, 5.5), (2.0, 9.5), (1.4, 5.9)),
    "pedestrian": ((0.25, 1.3), (0.2, 1.3), (0.9, 2.5)),
    "motorcycle": ((0.3, 1.0), (1.5, 2.6), (0.9, 2.0)),
    "bicycle": ((0.3, 0.8), (1.4, 2.0), (0.9, 2.1)),
    "traffic_cone": ((0.2, 0.7), (0.2, 0.7), (0.45, 1.1)),
    "barrier": ((0.6, 6.5), (0.2, 0.9), (0.7, 1.3)),
}


def world(*solids: tuple[Solid, tuple[float, float, float], float]) -> World:
    return World(
        [Placed(Body("thing", [Part("p", solid, (0.5, 0.5, 0.5))]), at, yaw) for solid, at, yaw in solids]
    )


def grid(directions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rays (N, 3) as a grid of one column."""
    x, y, z = directions.astype(np.float32).T
    return x[:, None], y[:, None], z[:, None]


def entry(solid_normals: np.ndarray, offsets: np.ndarray, origin: np.ndarray, ray: np.ndarray) -> float:
    """Distance at which a ray enters a convex solid, by clipping the ray at one plane after the other."""
    low, high = 0.0, np.inf
    for normal, offset in zip(solid_normals, offsets):
        slope, gap = float(normal @ ray), float(offset - normal @ origin)
        if slope < 0:
            low = max(low, gap / slope)
        elif slope > 0:
            high = min(high, gap / slope)
        elif gap < 0:
            return np.inf
    return low if low < high else np.inf


# --- solids


@pytest.mark.parametrize(
    "solid",
    [
        box((-1, 2), (0, 1), (0.5, 3)),
        extrude([(0, 0), (4, 0), (3, 1.5), (1, 1.5)], 0.9, 0.6),
        extrude([(1, 1.5), (3, 1.5), (2, 1.0), (4, 0), (0, 0)], 0.9, y=0.4),  # any order, a point inside
        rod((0, 0, 0.5), (1, 2, 1.5), 0.3, 0.1, sides=7),
        rod((0, 0, 0), (0, 0, 1.0), 0.3, sides=10),
    ],
)
def test_solids_are_closed_and_their_corners_lie_on_them(solid: Solid) -> None:
    assert np.linalg.norm(solid.normals, axis=1) == pytest.approx(1)
    gaps = solid.offsets - solid.corners @ solid.normals.T  # (corners, faces)
    assert gaps.min() > -1e-9
    assert np.sort(gaps, axis=0)[:3] == pytest.approx(0, abs=1e-9)  # every face has three corners or more
    assert np.sort(gaps, axis=1)[:, :3] == pytest.approx(
        0, abs=1e-9
    )  # every corner lies on three faces or more


def test_ball_touches_its_box() -> None:
    made = ball((1, 2, 3), (0.5, 1.0, 1.5))
    assert made.corners.min(axis=0) == pytest.approx([0.5, 1, 1.5])
    for axis, radius in enumerate((0.5, 1.0, 1.5)):
        facing = np.flatnonzero(np.isclose(made.normals[:, axis], 1))
        assert made.offsets[facing] == pytest.approx((1, 2, 3)[axis] + radius)


def test_moving_a_solid_moves_its_points() -> None:
    solid, rotation, shift = rod((0, 0, 0), (1, 0, 1), 0.2), turned(0.7), np.array([1.0, -2.0, 0.5])
    moved = solid.moved(rotation, shift)
    inside = np.array([0.5, 0.0, 0.5])
    assert (moved.normals @ (rotation @ inside + shift) < moved.offsets).all()
    assert moved.offsets - moved.normals @ (rotation @ inside + shift) == pytest.approx(
        solid.offsets - solid.normals @ inside
    )


# --- rays


def test_rays_meet_what_plane_by_plane_clipping_says() -> None:
    rng = np.random.default_rng(3)
    made = [scenes.ROAD_USERS[kind](rng) for kind in ("car", "bicycle", "construction_vehicle")]
    here = World([Placed(body, (6.0 * k + 5, 3.0 * k - 3, 0), 0.8 * k) for k, body in enumerate(made)])
    origin, rotation = np.array([0.0, 0.0, 1.8]), turned(0.3)
    rays = np.stack([np.ones(400), rng.uniform(-0.7, 0.7, 400), rng.uniform(-0.3, 0.1, 400)], axis=1)
    hits = here.intersect(origin, rotation, grid(rays))
    for number, ray in enumerate(rays @ rotation.T):
        distances = [
            entry(here.normals[first:last], here.offsets[first:last], origin, ray)
            for first, last in zip(here.starts, here.starts[1:])
        ]
        best = int(np.argmin(distances))
        if np.isinf(distances[best]):
            assert hits.instance[number, 0] == -1
            assert np.isinf(hits.distance[number, 0])
        else:
            assert hits.distance[number, 0] == pytest.approx(distances[best], rel=1e-4)
            part = hits.part[number, 0]
            assert distances[part] == pytest.approx(distances[best], rel=1e-4)
            assert hits.instance[number, 0] == here.part_instance[part]
            point, face = origin + hits.distance[number, 0] * ray, hits.face[number, 0]
            assert here.normals[face] @ point == pytest.approx(here.offsets[face], abs=2e-3)
            assert here.normals[face] @ ray < 0
    assert 20 < (hits.instance >= 0).sum() < 390


def test_the_nearer_body_hides_the_farther_one() -> None:
    cube = box((-0.5, 0.5), (-0.5, 0.5), (0, 1))
    here = world((cube, (10, 0, 0), 0.0), (cube, (4, 0, 0), 0.4), (cube, (7, 0, 0), 0.0))
    hits = here.intersect(np.array([0, 0, 0.5]), np.eye(3), grid(np.array([[1.0, 0, 0], [-1.0, 0, 0]])))
    assert hits.instance.ravel().tolist() == [1, -1]


def test_a_laser_scanner_sees_the_ground_where_it_is() -> None:
    ground = World([Placed(scenes._GROUND, (0, 0, 0), 0.0)])
    down = np.radians([30.0, 10.0, 2.0, -1.0])[:, None]
    around = np.linspace(0, 2 * np.pi, 16, endpoint=False)[None, :]
    rays = tuple(
        axis.astype(np.float32)
        for axis in (np.cos(down) * np.cos(around), np.cos(down) * np.sin(around), -np.sin(down))
    )
    hits = ground.intersect(np.array([3.0, 2.0, 1.84]), turned(0.5), rays)
    expected = 1.84 / np.sin(down[:3])
    assert hits.distance[:3] == pytest.approx(np.broadcast_to(expected, (3, 16)), rel=1e-4)
    assert (hits.instance[3] == -1).all()  # above the horizon


def test_windows_spare_work_and_change_nothing() -> None:
    rng = np.random.default_rng(5)
    placed = [
        Placed(scenes.ROAD_USERS[kind](rng), (8, 4 * k - 18, 0), 1.0 * k) for k, kind in enumerate(SIZES)
    ]
    placed.append(Placed(cars.car(rng), (0.5, 0.4, 0), 0.0))  # partly behind the camera
    here = World(placed)
    camera = look_at(np.array([0.0, 0, 1.5]), np.array([8.0, 1, 0.8]), 60.0, 120, 60, roll=0.1)
    windows = camera.windows(here)
    whole = np.tile([0, 60, 0, 120], (len(windows), 1))
    full, spared, found = (
        here.intersect(camera.position, camera.rotation, camera.rays, part) for part in (whole, windows, None)
    )
    for name in ("distance", "face", "part", "instance"):
        np.testing.assert_array_equal(getattr(full, name), getattr(spared, name))
        np.testing.assert_array_equal(getattr(full, name), getattr(found, name))
    areas = (windows[:, 1] - windows[:, 0]) * (windows[:, 3] - windows[:, 2])
    assert areas.mean() < 0.2 * 120 * 60


def test_camera_projects_where_its_rays_point() -> None:
    camera = look_at(np.array([1.0, 2, 1.5]), np.array([9.0, 0, 1]), 500.0, 640, 360, roll=0.05).cut(
        100, 50, 90, 32
    )
    x, y, z = np.broadcast_arrays(*camera.rays)
    toward = np.stack([x, y, z], axis=-1)[5, 20] @ camera.rotation.T
    pixels, depth = camera.project((camera.position + 7 * toward)[None])
    assert pixels[0] == pytest.approx([20.5, 5.5], abs=1e-3)
    assert depth[0] == pytest.approx(7, rel=1e-5)
    behind, _ = camera.project((camera.position - toward)[None])
    assert np.isnan(behind).all()


def test_shadow_falls_away_from_the_sun() -> None:
    here = world((box((-1, 1), (-1, 1), (0, 2)), (0, 0, 0), 0.3))
    sun = np.array([1.0, 0.0, 1.0]) / np.sqrt(2)
    points = np.array([[-2.0, 0, 0], [2.0, 0, 0], [-2.0, 3, 0], [-6.0, 0, 0], [0, 0, 2.01]], dtype=np.float32)
    assert here.shaded(points, sun).tolist() == [True, False, False, False, False]
    still = World([Placed(here.placed[0].body, (0, 0, 0), 0.3, shade=False)])
    assert not still.shaded(points, sun).any()


# --- bodies


def test_classes_are_those_of_nuscenes() -> None:
    assert list(scenes.ROAD_USERS) == list(DETECTION_NAMES)


@pytest.mark.parametrize("kind", list(SIZES))
def test_road_users_have_plausible_sizes_and_stand_on_the_road(kind: str) -> None:
    sizes = []
    for k in range(40):
        body = scenes.ROAD_USERS[kind](seeds.rng(k, "sizes"))
        assert body.kind == kind
        assert -0.02 < body.bounds[0][2] < 0.12
        sizes.append(body.size)
        for size, (low, high) in zip(body.size, SIZES[kind]):
            assert low <= size <= high
        assert ((body.colours >= 0) & (body.colours <= 1)).all()
    assert np.std(sizes, axis=0).max() > 0.03  # no two alike


def test_sedans_differ_in_proportions_only() -> None:
    for style in cars.SEDANS:
        body = cars.sedan(style, seeds.rng(0, "same details"))
        other = cars.sedan("mid-size sedan", seeds.rng(0, "same details"))
        assert [part.name for part in body.parts] == [part.name for part in other.parts]
        np.testing.assert_array_equal(body.colours, other.colours)


@pytest.mark.parametrize("name", list(tasks.TASKS))
def test_the_target_is_what_one_sees(name: str) -> None:
    task = tasks.TASKS[name]
    shares = []
    for k, kind in enumerate(list(task.shares) * 3):
        rng = seeds.rng(k, "seen", name)
        frame = scenes.picture(task.draw(kind, rng), task.view, 32, 0, rng)
        shares.append((frame.instance == 1).mean())
        assert frame.image.std() > 5
    assert min(shares) > 0.02
    assert np.mean(shares) > 0.2


# --- the data set


SMALL = {"train_images": 64}


def test_pictures_depend_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_CHUNK", 4)
    made = {}
    for workers, seed in ((1, 0), (2, 0), (1, 1)):
        monkeypatch.setenv("FEDLIB_WORKERS", str(workers))
        made[workers, seed] = tasks.generate(tasks.TASKS["objects"], {"train": 12, "test": 4}, 32, seed)
    for name, array in made[1, 0].items():
        np.testing.assert_array_equal(array, made[2, 0][name])
        assert (array != made[1, 1][name]).any()
    assert (made[1, 0]["train_images"][:4] != made[1, 0]["test_images"]).any()


def test_a_task_is_a_surrogate_with_three_splits() -> None:
    made = data.load("roadworld:coarse", size=64, **SMALL)
    assert made.card.kind == "surrogate"
    assert made.shape == (64, 64, 3)
    assert {key: len(split) for key, split in made.splits.items()} == {"train": 64, "val": 8, "test": 16}
    assert set(made.train.labels.tolist()) == set(range(made.num_classes))


def test_rare_classes_are_classes() -> None:
    for name, rare in roadworld.RARE.items():
        assert rare in tasks.TASKS[name.removeprefix("roadworld:")].shares


def test_classes_have_the_shares_of_the_task() -> None:
    for task in tasks.TASKS.values():
        counts = np.bincount(tasks.labels(task, "train", 4000, 0))
        assert counts.sum() == 4000
        assert np.abs(counts - 4000 * np.array(list(task.shares.values()))).max() <= 1
        assert len(set(counts.tolist())) > 3  # unequal
    order = [tasks.labels(task, split, 400, 0).tolist() for split in ("train", "test")]
    assert order[0] != order[1]


def test_pictures_are_made_once_and_a_damaged_cache_is_made_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = []

    def generate(task: tasks.Task, counts: dict[str, int], size: int, seed: int) -> dict[str, np.ndarray]:
        made.append(1)
        rng = np.random.default_rng(0)
        arrays = {}
        for key, n in counts.items():
            arrays[f"{key}_images"] = rng.integers(0, 256, (n, size, size, 3), dtype=np.uint8)
            arrays[f"{key}_labels"] = tasks.labels(task, key, n, seed)
        return arrays

    monkeypatch.setattr(roadworld, "generate", generate)
    first = data.load("roadworld:fine", **SMALL)
    where = data.find("roadworld:fine", **SMALL).where
    assert where is not None
    assert data.load("roadworld:fine", **SMALL).checksum == first.checksum
    assert len(made) == 1
    whole = where.read_bytes()
    for damaged in (
        whole[: len(whole) // 2],
        whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:],
        b"",
        b"PK",
    ):
        where.write_bytes(damaged)
        with caplog.at_level(logging.WARNING):
            assert data.load("roadworld:fine", **SMALL).checksum == first.checksum
        assert str(where) in caplog.text
        caplog.clear()
    assert len(made) == 5
    assert where.read_bytes() == whole


def test_another_generator_makes_other_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    before = roadworld._plan(tasks.TASKS["fine"], 32, 64, 0)[0]
    monkeypatch.setattr(roadworld, "code_version", lambda: "changed")
    assert roadworld._plan(tasks.TASKS["fine"], 32, 64, 0)[0] != before


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"size": 28}, "size is 28; allowed: 32, 64"),
        ({"train_images": 10}, "train_images is 10; allowed: an integer >= 64"),
        ({"train_images": 100.0}, "train_images is 100.0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": True}, "seed is True"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        data.load("roadworld:objects", **options)
    with pytest.raises(InputError, match=named):
        data.find("roadworld:objects", **options)


def test_unknown_task_and_workers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="did you mean 'coarse'"):
        data.load("roadworld:coarser")
    monkeypatch.setenv("FEDLIB_WORKERS", "two")
    with pytest.raises(InputError, match="FEDLIB_WORKERS is 'two'"):
        data.load("roadworld:objects", **SMALL)


# --- the cache


def test_arrays_wanted_twice_at_once_are_made_once(tmp_path: Path) -> None:
    made = []

    def make() -> dict[str, np.ndarray]:
        made.append(1)
        time.sleep(0.2)
        return {"a": np.arange(3), "words": np.array(["x", "yz"])}

    results: list[dict[str, np.ndarray]] = []
    threads = [
        threading.Thread(target=lambda: results.append(prepared.once(tmp_path / "a.npz", make)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert [result["words"].tolist() for result in results] == [["x", "yz"]] * 3


def test_a_failed_preparation_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail() -> dict[str, np.ndarray]:
        raise InputError("no data")

    with pytest.raises(InputError, match="no data"):
        prepared.once(tmp_path / "a.npz", fail)
    assert not list(tmp_path.glob("*.npz"))
    assert prepared.once(tmp_path / "a.npz", lambda: {"a": np.ones(2)})["a"].tolist() == [1, 1]


def test_arrays_that_no_longer_hold_are_made_anew(tmp_path: Path) -> None:
    numbers = iter((1, 2, 3))

    def make() -> dict[str, np.ndarray]:
        return {"a": np.array(next(numbers))}

    path = tmp_path / "a.npz"
    assert prepared.once(path, make)["a"] == 1
    assert prepared.once(path, make, lambda kept: kept["a"] == 2)["a"] == 2
    assert prepared.once(path, make, lambda kept: kept["a"] == 2)["a"] == 2
