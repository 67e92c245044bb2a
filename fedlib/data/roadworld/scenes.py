"""Street scenes around one road user, seen by a car's camera or a photographer, and their crops."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedlib import seeds
from fedlib.data.roadworld import cars, colours, heavy, people, street
from fedlib.data.roadworld.camera import Camera, look_at
from fedlib.data.roadworld.render import Frame, Ground, Light, Sensor, render
from fedlib.data.roadworld.world import Body, Placed, World

#: The ten detection classes of nuScenes in the order of its devkit, and who draws them.
ROAD_USERS: dict[str, Callable[[np.random.Generator], Body]] = {
    "car": cars.car,
    "truck": heavy.truck,
    "bus": heavy.bus,
    "trailer": heavy.trailer,
    "construction_vehicle": heavy.construction_vehicle,
    "pedestrian": people.pedestrian,
    "motorcycle": people.motorcycle,
    "bicycle": people.bicycle,
    "traffic_cone": street.traffic_cone,
    "barrier": street.barrier,
}
VEHICLES = ("car", "truck", "bus", "trailer", "construction_vehicle", "motorcycle", "bicycle")
SMALLEST = 24  # pixels: a box whose longer side is shorter is not cut out, as for real pictures
_POOL = {
    "car": 24,
    "pedestrian": 12,
    "traffic_cone": 4,
    "barrier": 6,
    "building": 12,
    "tree": 8,
    "hedge": 6,
    "pole": 6,
}
_THINGS = {"building": street.building, "tree": street.tree, "hedge": street.hedge, "pole": street.pole}


@dataclass(frozen=True)
class View:
    """How pictures are taken.

    Attributes:
        distance: nearest and farthest, metres.
        height: lowest and highest camera, metres.
        focal: pixels of the full picture, 1600 x 900.
        angle: smallest and largest angle between the target's heading and the camera, degrees; None where the
            camera drives on the same road (nuScenes).
        clutter: share of the places beside the road that are filled.
        occluded: share of pictures with something in front.
        margin: side of the square crop / longer side of the box, least and most.
        jitter: largest shift of the crop / its side.
        exposure: spread (standard deviation of the logarithm) of the exposure.
        noise: least and most noise at full scale.
        softness: share of pictures that are out of focus.
    """

    distance: tuple[float, float]
    height: tuple[float, float]
    focal: tuple[float, float]
    angle: tuple[float, float] | None
    clutter: float
    occluded: float
    margin: tuple[float, float]
    jitter: float
    exposure: float
    noise: tuple[float, float]
    softness: float


DRIVING = View(
    distance=(4.0, 45.0),
    height=(1.45, 1.65),
    focal=(1240.0, 1280.0),
    angle=None,
    clutter=1.0,
    occluded=0.35,
    margin=(1.05, 1.3),
    jitter=0.05,
    exposure=0.35,
    noise=(0.02, 0.06),
    softness=0.15,
)
PHOTOGRAPH = View(
    distance=(7.0, 14.0),
    height=(1.2, 1.7),
    focal=(1000.0, 1800.0),
    angle=(25.0, 105.0),
    clutter=0.5,
    occluded=0.05,
    margin=(1.02, 1.2),
    jitter=0.04,
    exposure=0.2,
    noise=(0.01, 0.02),
    softness=0.0,
)


def picture(target: Body, view: View, pixels: int, world_seed: int, rng: np.random.Generator) -> Frame:
    """Put a road user into a street, light it, and cut its picture out.

    Args:
        target: the road user; instance 1 of the frame (0 is the ground).
        view: how the picture is taken.
        pixels: side of the square crop.
        world_seed: seed of the bodies in the background, which pictures share.
        rng: stream of this picture.
    """
    ground = _ground(rng)
    placed = _place(target, ground, rng)
    camera, box = _camera(placed, ground, view, rng)
    others = _surroundings(placed, ground, view.clutter, world_seed, rng)
    occluders = _occluder(placed, camera, box, world_seed, rng) if rng.random() < view.occluded else []
    side = float(box[2:].max()) * float(rng.uniform(*view.margin))
    middle = box[:2] + view.jitter * side * rng.uniform(-1, 1, 2)
    cut = camera.cut(float(middle[0] - side / 2), float(middle[1] - side / 2), side, pixels)
    light = _light(rng)
    world = World(
        [Placed(_GROUND, (0.0, 0.0, 0.0), 0.0, False), placed, *_visible(others, cut, placed), *occluders]
    )
    return render(world, cut, light, ground, _sensor(light, side / pixels, view, rng), rng)


_GROUND = street.ground()


@lru_cache(maxsize=2)
def _pool(world_seed: int) -> dict[str, list[Body]]:
    makers = {**ROAD_USERS, **_THINGS}
    return {
        kind: [makers[kind](seeds.rng(world_seed, "pool", kind, k)) for k in range(number)]
        for kind, number in _POOL.items()
    }


def _ground(rng: np.random.Generator) -> Ground:
    half = float(rng.uniform(3.2, 8.0))
    lanes = (0.0,) if half < 5 else (-half / 2, 0.0, half / 2)
    road = np.array(colours.vary(rng, (0.11, 0.11, 0.115), 0.12))
    beside = np.array(
        colours.one_of(rng, ((0.28, 0.27, 0.25), (0.22, 0.21, 0.2), (0.07, 0.12, 0.04), (0.3, 0.25, 0.18)))
    )
    line = np.array(colours.one_of(rng, ((0.55, 0.55, 0.53), (0.55, 0.55, 0.53), (0.5, 0.36, 0.06))))
    pattern = np.concatenate(
        [rng.normal(size=(4, 3)) * [[0.25], [0.6], [1.3], [2.6]], rng.random((4, 1))], axis=1
    )
    return Ground(0.0, half, lanes, road, beside, line, float(rng.uniform(0, 6)), pattern)


def _place(target: Body, ground: Ground, rng: np.random.Generator) -> Placed:
    """Put the target at the origin of the plane x, y by shifting the road instead."""
    side = -1 if rng.random() < 0.5 else 1
    along = 0.0 if rng.random() < 0.5 else np.pi
    if target.kind in VEHICLES:
        lateral = side * float(rng.uniform(0.25, 0.8)) * ground.half_width
        yaw = along + float(rng.normal(0, 0.08)) if rng.random() < 0.8 else float(rng.uniform(-np.pi, np.pi))
    elif target.kind == "pedestrian":
        beyond = ground.half_width + float(rng.uniform(0.5, 3.0))
        lateral = side * (beyond if rng.random() < 0.6 else float(rng.uniform(0, ground.half_width)))
        yaw = float(rng.uniform(-np.pi, np.pi))
    else:
        lateral = side * (ground.half_width + float(rng.uniform(-1.5, 1.0)))
        turned = target.kind == "barrier" and rng.random() < 0.75
        yaw = along + np.pi / 2 + float(rng.normal(0, 0.15)) if turned else float(rng.uniform(-np.pi, np.pi))
    return Placed(target, (0.0, lateral, 0.0), yaw)


def _camera(
    placed: Placed, ground: Ground, view: View, rng: np.random.Generator
) -> tuple[Camera, np.ndarray]:
    """Draw a camera that sees the target; the box is (middle x, middle y, width, height) in its pixels."""
    target = np.array([placed.position[0], placed.position[1], 0.5 * placed.body.bounds[1][2]])
    radius = placed.body.reach[0]
    longest = view.distance[1]
    while True:
        distance = float(np.exp(rng.uniform(np.log(view.distance[0]), np.log(longest))))
        if view.angle is None:
            y = float(rng.choice([-0.5, 0.5])) * ground.half_width + float(rng.normal(0, 0.4))
            x = distance * (1 if rng.random() < 0.5 else -1)
        else:
            angle = placed.yaw + math.radians(rng.uniform(*view.angle)) * (1 if rng.random() < 0.5 else -1)
            x, y = distance * np.cos(angle), placed.position[1] + distance * np.sin(angle)
        away = np.array([x, y - placed.position[1]])
        gap = float(np.linalg.norm(away))
        if gap < radius + 2.0:  # too close to fit: back off along the line of sight
            away *= (radius + 2.0) / gap
        position = np.array([away[0], placed.position[1] + away[1], float(rng.uniform(*view.height))])
        camera = look_at(
            position, target, float(rng.uniform(*view.focal)), 1600, 900, float(rng.normal(0, 0.015))
        )
        pixels, _ = camera.project(placed.to_world(placed.body.corners))
        low, high = pixels.min(axis=0), pixels.max(axis=0)
        if np.isfinite(low).all() and (high - low).max() >= SMALLEST:
            return camera, np.concatenate([(low + high) / 2, high - low])
        longest = max(view.distance[0] + 1, 0.7 * longest)


def _surroundings(
    placed: Placed, ground: Ground, clutter: float, world_seed: int, rng: np.random.Generator
) -> list[Placed]:
    """Fill both sides of the street: parked cars, walkers, trees, poles, hedges, buildings."""
    pool = _pool(world_seed)
    others: list[Placed] = []

    def put(kind: str, x: float, y: float, yaw: float, shade: bool) -> None:
        body = pool[kind][rng.integers(len(pool[kind]))]
        if rng.random() >= clutter:
            return
        clear = body.reach[0] + placed.body.reach[0]
        if math.hypot(x - placed.position[0], y - placed.position[1]) > clear:
            others.append(Placed(body, (x, y, 0.0), yaw, shade))

    for side in (-1, 1):
        curb = side * ground.half_width
        far = float(rng.uniform(4, 12))
        built = rng.random()
        for slot in range(-4, 5):
            x = 13.0 * slot + float(rng.uniform(-3, 3))
            if rng.random() < built:
                put("building", x, curb + side * (far + 4), np.pi / 2 * (1 - side), False)
            elif rng.random() < 0.5:
                put("hedge", x, curb + side * (far - 1), 0.0, False)
            if rng.random() < 0.45:
                put(
                    "tree",
                    x + float(rng.uniform(-5, 5)),
                    curb + side * float(rng.uniform(1.5, far)),
                    0.0,
                    False,
                )
            if rng.random() < 0.25:
                put("pole", x + float(rng.uniform(-5, 5)), curb + side * 0.6, np.pi / 2 * side, False)
            if rng.random() < 0.35:
                put(
                    "pedestrian", x, curb + side * float(rng.uniform(0.8, 3)), float(rng.uniform(-3, 3)), True
                )
        parked = float(rng.uniform(0, 0.6))
        for slot in range(-6, 7):
            if rng.random() < parked:
                x = 6.5 * slot + float(rng.uniform(-0.6, 0.6))
                put("car", x, curb - side * 1.2, 0.0 if rng.random() < 0.5 else np.pi, True)
            if rng.random() < 0.12:
                put("car", 6.5 * slot, 0.4 * curb, 0.0 if side < 0 else np.pi, True)
    return others


def _occluder(
    placed: Placed, camera: Camera, box: np.ndarray, world_seed: int, rng: np.random.Generator
) -> list[Placed]:
    """Draw something that hides 5 to 45 % of the target's box, if a few tries find a place for it."""
    pool = _pool(world_seed)
    kind = ("car", "pedestrian", "traffic_cone", "barrier", "pole", "tree")[
        rng.choice(6, p=[0.3, 0.25, 0.1, 0.15, 0.12, 0.08])
    ]
    body = pool[kind][rng.integers(len(pool[kind]))]
    target = np.array(placed.position[:2])
    sight = target - camera.position[:2]
    across = np.array([-sight[1], sight[0]]) / np.linalg.norm(sight)
    low, high = box[:2] - box[2:] / 2, box[:2] + box[2:] / 2
    reach = 0.5 * max(placed.body.size) + 0.5 * max(body.size)
    for _ in range(6):
        where = (
            camera.position[:2]
            + float(rng.uniform(0.45, 0.9)) * sight
            + float(rng.uniform(-1, 1)) * reach * across
        )
        candidate = Placed(body, (float(where[0]), float(where[1]), 0.0), float(rng.uniform(-np.pi, np.pi)))
        if (
            math.dist(where, target) < reach
            or math.dist(where, camera.position[:2]) < 0.5 * max(body.size) + 0.5
        ):
            continue
        pixels, _ = camera.project(candidate.box)
        if not np.isfinite(pixels).all():
            continue
        shared = np.minimum(high, pixels.max(axis=0)) - np.maximum(low, pixels.min(axis=0))
        if (shared > 0).all() and 0.05 < shared.prod() / box[2:].prod() < 0.45:
            return [candidate]
    return []


def _visible(others: list[Placed], camera: Camera, placed: Placed) -> list[Placed]:
    """Keep what the crop can show and is farther away than the target."""
    aim = (
        (camera.width / 2 - camera.centre[0]) / camera.focal[0],
        (camera.height / 2 - camera.centre[1]) / camera.focal[1],
    )
    ax, ay, az = (camera.rotation @ (*aim, 1.0) / math.hypot(*aim, 1.0)).tolist()
    half = math.atan(0.75 * camera.width / camera.focal[0])
    px, py, pz = camera.position.tolist()
    limit = math.dist(placed.position, (px, py, pz))
    kept = []
    for item in others:
        dx, dy = item.position[0] - px, item.position[1] - py
        dz = 0.5 * item.body.size[2] - pz
        distance, radius = math.hypot(dx, dy, dz), item.body.reach[1]
        if distance <= limit:
            continue
        off = math.acos(max(-1.0, min(1.0, (dx * ax + dy * ay + dz * az) / distance)))
        if off <= half + math.asin(min(1.0, radius / distance)):
            kept.append(item)
    return kept


def _light(rng: np.random.Generator) -> Light:
    elevation, azimuth = float(np.radians(rng.uniform(15, 75))), float(rng.uniform(0, 2 * np.pi))
    direction = np.array(
        [np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)]
    )
    cloudy = rng.random() < 0.4
    strength = (
        0.0
        if cloudy and rng.random() < 0.6
        else float(rng.uniform(0.2, 0.5) if cloudy else rng.uniform(0.7, 1.2))
    )
    warm = 1 - np.sin(elevation)
    sun = strength * np.array([1.0, 0.95 - 0.12 * warm, 0.88 - 0.3 * warm])
    if cloudy:
        zenith = float(rng.uniform(0.45, 0.8)) * np.array([0.95, 0.98, 1.0])
        horizon = float(rng.uniform(0.9, 1.2)) * zenith
    else:
        zenith = float(rng.uniform(0.3, 0.5)) * np.array([0.62, 0.8, 1.15])
        horizon = float(rng.uniform(0.55, 0.8)) * np.array([0.9, 0.97, 1.05])
    return Light(direction, sun, zenith, horizon, float(rng.uniform(150, 1200)))


def _sensor(light: Light, native: float, view: View, rng: np.random.Generator) -> Sensor:
    """Draw a sensor; ``native`` is the number of the camera's own pixels along one pixel of the crop."""
    level = float(light.sun.mean() * max(light.direction[2], 0.3) + light.zenith.mean())
    exposure = 0.95 / level * float(np.exp(rng.normal(0, view.exposure)))
    lens = 0.6 / max(native, 0.2)  # own blur of lens and demosaicking, in pixels of the crop
    blur = float(np.hypot(0.35, min(lens, 2.0)) + (rng.random() < view.softness) * rng.uniform(0.3, 1.0))
    balance = np.exp(rng.normal(0, 0.06, 3))
    noise = float(rng.uniform(*view.noise)) / max(1.0, min(native, 2.0))
    return Sensor(exposure, blur, noise, 0.25 * noise, balance)
