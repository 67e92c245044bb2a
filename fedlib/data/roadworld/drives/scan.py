"""LiDAR sweeps: ray casting against everything, then what materials, distance and rain do to the returns."""

from __future__ import annotations

import numpy as np

from fedlib.data.roadworld.drives.conditions import DROPOUT, DRY_RANGE, RAIN, RANGE_NOISE, City
from fedlib.data.roadworld.drives.rig import Scanner
from fedlib.data.roadworld.render import Ground
from fedlib.data.roadworld.world import FINISHES, World

#: Share of the light that comes back from a white surface of each finish, and how much its colour counts.
_RETURN = {
    "matt": (0.10, 0.45),
    "paint": (0.18, 0.35),
    "glass": (0.03, 0.0),
    "lamp": (0.75, 0.0),
    "leaves": (0.12, 0.5),
    "facade": (0.12, 0.4),
    "ground": (0.03, 0.6),
}
_BASE, _COLOUR = np.array([_RETURN[name] for name in FINISHES], dtype=np.float32).T
_BASE_OF_GROUND, _COLOUR_OF_GROUND = _RETURN["ground"]
_LINE = 0.35  # of painted lines on the road
_PLATES = 0.8  # of the bands of cones and of number plates, which reflect back
_FADE = 60.0  # metres: exp(-range / fade)
_WEAKEST = 0.5  # intensities below are not registered


def sweep(
    world: World,
    scanner: Scanner,
    ground: Ground,
    city: City,
    rain: bool,
    vehicles: range,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return one sweep, float32 (N, 5): x, y, z in the sensor's frame, intensity 0 to 255, ring.

    Args:
        world: what is there.
        scanner: from where, with which beams.
        ground: where lines are painted on the road.
        city: how well its vehicles reflect.
        rain: whether it rains.
        vehicles: instances of road users in the world.
        rng: draws noise and lost returns.
    """
    rays = scanner.rays
    hits = world.intersect(scanner.position, scanner.rotation, rays, scanner.windows(world))
    shape = hits.distance.shape
    direction = np.stack([np.broadcast_to(axis, shape) for axis in rays], axis=2)
    met = hits.part >= 0
    distance = np.where(met, hits.distance, np.inf)
    part, face = hits.part[met], hits.face[met]
    towards = direction[met]
    finish = world.finishes[part]
    strength = _BASE[finish] + _COLOUR[finish] * world.colours[part].mean(axis=1)
    low = finish == FINISHES.index("ground")
    strength[low] = _road(
        (towards[low] * distance[met][low, None]) @ scanner.rotation.T + scanner.position, ground
    )
    bright = (world.colours[part].min(axis=1) > 0.6) & (finish == FINISHES.index("matt"))
    strength[bright] = _PLATES
    on_vehicle = (hits.instance[met] >= vehicles.start) & (hits.instance[met] < vehicles.stop)
    strength[on_vehicle] *= city.reflectance
    normals = (world.normals[face] @ scanner.rotation).astype(np.float32)
    facing = np.abs((normals * towards).sum(axis=1))
    intensity = np.zeros(shape, dtype=np.float32)
    intensity[met] = 255 * strength * (0.3 + 0.7 * facing) * np.exp(-distance[met] / _FADE)

    lost = rng.random(shape) < DROPOUT
    lost |= distance > (RAIN.range if rain else DRY_RANGE)
    noise = RANGE_NOISE * rng.standard_normal(shape)
    if rain:
        flat = hits.instance == 0
        share = np.where(flat, RAIN.ground, RAIN.near + RAIN.far * np.minimum(1, distance / RAIN.range))
        lost |= rng.random(shape) < share
        intensity *= RAIN.intensity
        noise *= RAIN.noise
    lost |= intensity < _WEAKEST
    intensity *= np.exp(0.1 * rng.standard_normal(shape))
    if rain:  # drops near the car, whatever is behind them
        drops = rng.random(shape) < RAIN.spurious
        near = 1.5 + rng.exponential(3.0, shape)
        drops &= near < np.where(np.isfinite(distance), distance, RAIN.range)
        distance = np.where(drops, near, distance)
        intensity[drops] = 255 * 0.05 * np.exp(-near[drops] / _FADE)
        lost &= ~drops
    kept = ~lost
    points = np.empty((int(kept.sum()), 5), dtype=np.float32)
    points[:, :3] = direction[kept] * (distance + noise)[kept][:, None]
    points[:, 3] = np.clip(np.rint(intensity[kept]), 0, 255)
    points[:, 4] = np.broadcast_to(np.arange(shape[0])[:, None], shape)[kept]
    return points


def _road(points: np.ndarray, ground: Ground) -> np.ndarray:
    """Return how the ground reflects at points (N, 3) of the street: dark asphalt, other paving, bright lines."""
    across = points[:, 1] - ground.middle
    off = np.abs(across) > ground.half_width
    strength = np.where(off, ground.beside.mean(), ground.road.mean()) * _COLOUR_OF_GROUND + _BASE_OF_GROUND
    for lane in (*ground.lanes, ground.half_width - 0.3, 0.3 - ground.half_width):
        strength[np.abs(across - lane) < 0.12] = _LINE
    return strength
