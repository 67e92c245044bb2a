"""A drive: a straight street, what stands and moves there for some seconds, and the way of the recording car.

The road's axis is x, the car drives along +x and is at x = 0 in the middle of the drive. Everybody moves at a
constant velocity, so that positions, velocities and attributes of the annotations are exact. ``Drive.pose`` puts
the street into the world of its map.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from fedlib import seeds
from fedlib.data.nuscenes.domains import Domain
from fedlib.data.roadworld import scenes, street
from fedlib.data.roadworld.drives.conditions import DRY_HAZE, RAIN, City, city_of, mix_of
from fedlib.data.roadworld.render import Ground, Light
from fedlib.data.roadworld.world import Body, Placed, World

INTERVAL = 0.5  # seconds between key frames, as in nuScenes
EGO_SIZE = (2.0, 4.6)  # width and length of the recording car with a little room, metres
_TRIES = 20
_GAP = 0.35  # metres that must be free around everybody
_GROUND = Placed(street.ground(), (0.0, 0.0, 0.0), 0.0, False)
_HEAVY = ("truck", "bus", "trailer", "construction_vehicle")
_RIDERS = ("motorcycle", "bicycle")
_STATIC = ("traffic_cone", "barrier")
_POOL = {"building": 24, "tree": 16, "hedge": 8, "pole": 8}
_MAKERS = {"building": street.building, "tree": street.tree, "hedge": street.hedge, "pole": street.pole}


@dataclass(frozen=True, eq=False)
class Actor:
    """A road user.

    Attributes:
        kind: detection class.
        body: its shape.
        position: (x, y) of the body's origin at time 0, metres.
        yaw: heading, radians.
        speed: along the heading, metres per second.
        attribute: as in nuScenes; empty for none.
    """

    kind: str
    body: Body
    position: tuple[float, float]
    yaw: float
    speed: float
    attribute: str

    def placed(self, time: float) -> Placed:
        """Return the body where it is at a time in seconds."""
        x, y = self.position
        way = self.speed * time
        return Placed(self.body, (x + way * math.cos(self.yaw), y + way * math.sin(self.yaw), 0.0), self.yaw)


@dataclass(frozen=True, eq=False)
class Drive:
    """A scene.

    Attributes:
        domain: its conditions.
        location: of the log.
        times: (T,) of the key frames in seconds; 0 is the middle of the drive.
        ego_speed: of the recording car, metres per second.
        ego_y: its place across the road.
        actors: who is annotated.
        things: what is not: buildings, trees, poles, hedges.
        ground: pattern of the road.
        light: of the day; at night the white light that :mod:`.photograph` scales.
        pose: (x, y, yaw) of the street in the world.
    """

    domain: Domain
    location: str
    times: np.ndarray
    ego_speed: float
    ego_y: float
    actors: tuple[Actor, ...]
    things: tuple[Placed, ...]
    ground: Ground
    light: Light
    pose: tuple[float, float, float]

    def world(self, time: float) -> World:
        """Return everything at a time; instance 0 is the ground, then come the actors in order."""
        return World([_GROUND, *(actor.placed(time) for actor in self.actors), *self.things])

    def ego(self, time: float) -> np.ndarray:
        """Return the pose (4, 4) of the recording car on the street."""
        pose = np.eye(4)
        pose[:2, 3] = self.ego_speed * time, self.ego_y
        return pose

    @property
    def to_world(self) -> np.ndarray:
        """The pose (4, 4) of the street in the world."""
        x, y, yaw = self.pose
        pose = np.eye(4)
        pose[:2, :2] = [[math.cos(yaw), -math.sin(yaw)], [math.sin(yaw), math.cos(yaw)]]
        pose[:2, 3] = x, y
        return pose

    @property
    def description(self) -> str:
        """Words as in nuScenes, light and weather first."""
        kinds = [actor.kind for actor in self.actors]
        words = ["Night"] * self.domain.night + ["rain" if self.domain.night else "Rain"] * self.domain.rain
        for kind in dict.fromkeys(kinds):
            name = kind.replace("_", " ") + ("es" if kind.endswith("s") else "s")
            words.append(f"many {name}" if kinds.count(kind) > 4 else name)
        return ", ".join(words) or "empty street"


def drive(domain: Domain, frames: int, reach: float, world_seed: int, rng: np.random.Generator) -> Drive:
    """Draw a scene.

    Args:
        domain: city, light and weather.
        frames: number of key frames.
        reach: metres before and behind the middle of the drive within which road users are put.
        world_seed: seed of the bodies of things, which drives share.
        rng: stream of this drive.
    """
    city = city_of(domain)
    times = INTERVAL * (np.arange(frames) - (frames - 1) / 2)
    ego_speed = float(rng.uniform(0, 7))
    ego_y = city.side * 0.5 * city.lane
    crowd = _Crowd(times, ego_speed, ego_y, reach, city, rng)
    for kind, mean in mix_of(domain).items():
        for _ in range(rng.poisson(mean)):
            crowd.add(kind)
    pose = (*rng.uniform(75, 85, 2).tolist(), float(rng.uniform(-np.pi, np.pi)))
    return Drive(
        domain,
        city.locations[rng.integers(len(city.locations))],
        times,
        ego_speed,
        ego_y,
        tuple(crowd.actors),
        tuple(_things(city, reach + 25, world_seed, rng)),
        _ground(city, domain, rng),
        _light(city, domain, rng),
        pose,
    )


class _Crowd:
    """Road users, put one after the other where no one else is at any time of the drive."""

    def __init__(
        self,
        times: np.ndarray,
        ego_speed: float,
        ego_y: float,
        reach: float,
        city: City,
        rng: np.random.Generator,
    ) -> None:
        self.times = np.append(times, times - INTERVAL / 2)
        self.reach, self.city, self.rng = reach, city, rng
        self.actors: list[Actor] = []
        ego = np.stack([ego_speed * self.times, np.full(len(self.times), ego_y)], axis=1)
        self.middles, self.yaws, self.halves = [ego], [0.0], [(EGO_SIZE[1] / 2, EGO_SIZE[0] / 2)]

    def add(self, kind: str) -> None:
        """Draw a road user of a class and try some places for it; without a free one it stays away."""
        body = _body(kind, self.city, self.rng)
        low, high = body.bounds
        half = 0.5 * (high - low)[:2]
        for _ in range(_TRIES):
            actor = _behaviour(kind, body, self.reach, self.city, self.rng)
            c, s = math.cos(actor.yaw), math.sin(actor.yaw)
            x, y = 0.5 * (low + high)[:2]
            start = np.add(actor.position, (c * x - s * y, s * x + c * y))
            middle = start + (actor.speed * self.times)[:, None] * np.array([c, s])
            if not any(
                _touch(middle, actor.yaw, half, *other) for other in zip(self.middles, self.yaws, self.halves)
            ):
                self.actors.append(actor)
                self.middles.append(middle)
                self.yaws.append(actor.yaw)
                self.halves.append((float(half[0]), float(half[1])))
                return


def _touch(
    middle: np.ndarray,
    yaw: float,
    half: np.ndarray,
    other_middle: np.ndarray,
    other_yaw: float,
    other_half: tuple[float, float],
) -> bool:
    """Say whether two moving rectangles come closer than the gap at one of the times (separating axes)."""
    away = other_middle - middle
    apart = np.zeros(len(away), dtype=bool)
    for angle in (yaw, yaw + np.pi / 2, other_yaw, other_yaw + np.pi / 2):
        axis = np.array([math.cos(angle), math.sin(angle)])
        reach = sum(
            length * abs(math.cos(angle - own - turn))
            for own, lengths in ((yaw, half), (other_yaw, other_half))
            for length, turn in zip(lengths, (0.0, np.pi / 2))
        )
        apart |= np.abs(away @ axis) > reach + _GAP
    return not apart.all()


def _body(kind: str, city: City, rng: np.random.Generator) -> Body:
    """Draw a body in the fashion of a city."""
    body = scenes.ROAD_USERS[kind](rng)
    if kind not in ("car", *_HEAVY):
        return body
    factors = np.array(city.paint)
    parts = []
    for part in body.parts:
        colour = part.colour
        if part.finish == "paint":
            red, green, blue = np.minimum(np.array(colour) * factors, 0.9).tolist()
            colour = (red, green, blue)
        parts.append(replace(part, solid=part.solid.scaled(city.scale), colour=colour))
    return Body(body.kind, parts, body.style)


def _behaviour(kind: str, body: Body, reach: float, city: City, rng: np.random.Generator) -> Actor:
    """Draw place, heading, speed and attribute."""
    x = float(rng.uniform(-reach, reach))
    half = 2 * city.lane
    if kind in _STATIC:
        y = float(rng.choice([-1, 1])) * (half + float(rng.uniform(-1.8, 0.8)))
        across = kind == "barrier" and rng.random() < 0.75
        yaw = float(rng.choice([0.0, np.pi])) + np.pi / 2 + float(rng.normal(0, 0.15))
        return Actor(kind, body, (x, y), yaw if across else float(rng.uniform(-np.pi, np.pi)), 0.0, "")
    if kind == "pedestrian":
        side = float(rng.choice([-1, 1]))
        y = side * (half + float(rng.uniform(0.5, 3.0)))
        if rng.random() < 0.25:
            y = float(rng.uniform(-half, half))
        walks = body.style == "walking"
        speed = float(rng.uniform(0.6, 1.6)) if walks else 0.0
        attribute = "pedestrian.moving" if walks else "pedestrian.standing"
        return Actor(kind, body, (x, y), float(rng.uniform(-np.pi, np.pi)), speed, attribute)
    outer = rng.random() < 0.5
    side = float(rng.choice([-1, 1]))
    y = side * (1.5 if outer else 0.5) * city.lane + float(rng.normal(0, 0.15))
    yaw = (0.0 if side == city.side else np.pi) + float(rng.normal(0, 0.08))
    if rng.random() < 0.12:
        yaw += float(rng.choice([-1, 1])) * np.pi / 2  # comes out of a side street or an exit
    if kind in _RIDERS:
        ridden = body.style == "with rider"
        if not ridden:
            y = side * (half + float(rng.uniform(0.3, 1.8)))
        fastest = 8.0 if kind == "motorcycle" else 3.5
        speed = float(rng.uniform(0.5, fastest)) if ridden and rng.random() < 0.85 else 0.0
        return Actor(kind, body, (x, y), yaw, speed, f"cycle.{'with' if ridden else 'without'}_rider")
    still = kind == "construction_vehicle" or rng.random() < (0.7 if outer else 0.3)
    if still:
        return Actor(kind, body, (x, y), yaw, 0.0, "vehicle.parked" if outer else "vehicle.stopped")
    return Actor(kind, body, (x, y), yaw, float(rng.uniform(0.6, 8.0)), "vehicle.moving")


def _things(city: City, reach: float, world_seed: int, rng: np.random.Generator) -> list[Placed]:
    """Line the street with buildings, trees, poles and hedges."""
    pool = _pool(world_seed)
    things = []

    def put(kind: str, x: float, y: float, yaw: float) -> None:
        things.append(Placed(pool[kind][rng.integers(len(pool[kind]))], (x, y, 0.0), yaw, False))

    for side in (-1, 1):
        x = -reach
        while x < reach:
            front = float(rng.uniform(*city.building))
            if rng.random() < 0.75:
                put("building", x, side * (front + 4.5), np.pi / 2 * (1 - side))
            else:
                put("hedge", x, side * (front - 1), 0.0)
            x += float(rng.uniform(12, 24))
        for kind, density in (("tree", city.trees), ("pole", 3.0)):
            for _ in range(rng.poisson(density * 2 * reach / 100)):
                out = 0.7 if kind == "pole" else float(rng.uniform(1.5, 4.0))
                put(kind, float(rng.uniform(-reach, reach)), side * (2 * city.lane + out), np.pi / 2 * side)
    return things


@lru_cache(maxsize=2)
def _pool(world_seed: int) -> Mapping[str, list[Body]]:
    return {
        kind: [_MAKERS[kind](seeds.rng(world_seed, "drives", "pool", kind, k)) for k in range(number)]
        for kind, number in _POOL.items()
    }


def _ground(city: City, domain: Domain, rng: np.random.Generator) -> Ground:
    wet = 0.6 if domain.rain else 1.0
    vary = np.exp(0.1 * rng.normal())
    pattern = np.concatenate(
        [rng.normal(size=(4, 3)) * [[0.25], [0.6], [1.3], [2.6]], rng.random((4, 1))], axis=1
    )
    return Ground(
        0.0,
        2 * city.lane,
        (-city.lane, 0.0, city.lane),
        np.array(city.road) * vary * wet,
        np.array(city.beside) * vary * wet,
        np.array(city.line),
        float(rng.uniform(0, 6)),
        pattern,
    )


def _light(city: City, domain: Domain, rng: np.random.Generator) -> Light:
    """Sun and sky; without sun in rain and at night, where the sky gives white light of strength 1."""
    elevation, azimuth = float(np.radians(rng.uniform(20, 75))), float(rng.uniform(0, 2 * np.pi))
    flat = math.cos(elevation)
    direction = np.array([flat * math.cos(azimuth), flat * math.sin(azimuth), math.sin(elevation)])
    strength = float(np.exp(0.15 * rng.normal()))
    haze = RAIN.haze if domain.rain else DRY_HAZE
    if domain.night:
        white = np.ones(3)
        return Light(direction, np.zeros(3), white, white, haze)
    if domain.rain:
        grey = strength * np.array([0.5, 0.52, 0.54])
        return Light(direction, np.zeros(3), grey, 1.15 * grey, haze)
    sun = strength * float(rng.uniform(0.5, 1.1)) * np.array([1.0, 0.93, 0.8])
    return Light(direction, sun, strength * np.array(city.zenith), strength * np.array(city.horizon), haze)
