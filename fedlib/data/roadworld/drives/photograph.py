"""Pictures of a drive by the renderer of the image tasks, with what night and rain add to its daylight.

At night the street is lit by white light first, which gives how much each surface reflects; that is then scaled by
the little light there is: the headlights of the recording car, street lamps, and a rest. Lamps of others shine.
"""

from __future__ import annotations

import numpy as np

from fedlib.data.roadworld.camera import Camera
from fedlib.data.roadworld.drives.conditions import NIGHT, RAIN
from fedlib.data.roadworld.drives.traffic import Drive
from fedlib.data.roadworld.render import SUPERSAMPLE, Sensor, expose, radiance
from fedlib.data.roadworld.world import FINISHES, Hits, World

FINE = SUPERSAMPLE  # rays along each side of a pixel, as the renderer's sensor expects
_WARM = np.array([1.0, 0.82, 0.55], dtype=np.float32)


def photograph(
    drive: Drive, world: World, camera: Camera, ego: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, Hits]:
    """Take a picture.

    Args:
        drive: light, road and conditions.
        world: of the drive at this time.
        camera: with ``FINE`` rays along each side of a pixel.
        ego: pose (4, 4) of the recording car, which has its headlights on at night.
        rng: draws noise and drops.

    Returns:
        uint8 (H, W, 3), and what each ray met (FINE H, FINE W).
    """
    hits = world.intersect(camera.position, camera.rotation, camera.rays, camera.windows(world))
    linear = radiance(world, camera, hits, drive.light, drive.ground)
    width = camera.width // FINE
    if drive.domain.night:
        linear = _darkened(linear, world, camera, hits, ego)
        exposure, noise = 1.0, NIGHT.noise
    else:
        level = drive.light.sun.mean() * max(float(drive.light.direction[2]), 0.3) + drive.light.zenith.mean()
        exposure, noise = 0.95 / float(level) * float(np.exp(0.15 * rng.normal())), 0.03
    blur = 0.45
    if drive.domain.rain:
        linear = _rained(linear, camera, rng)
        blur = float(np.hypot(blur, RAIN.blur * width))
    sensor = Sensor(exposure, blur, noise, 0.3 * noise, np.exp(0.03 * rng.normal(size=3)))
    return expose(linear, sensor, rng), hits


def _darkened(linear: np.ndarray, world: World, camera: Camera, hits: Hits, ego: np.ndarray) -> np.ndarray:
    """Scale white daylight down to what is there at night."""
    shape = hits.face.shape
    met = hits.part >= 0
    rays = np.stack([np.broadcast_to(axis, shape)[met] for axis in camera.rays], axis=1)
    rotation = camera.rotation.astype(np.float32)
    points = hits.distance[met][:, None] * (rays @ rotation.T) + camera.position.astype(np.float32)
    ahead = ((points - ego[:3, 3]) @ ego[:3, :3]).astype(np.float32)  # in the car's frame
    away = np.maximum(np.hypot(ahead[:, 0] - 2.0, ahead[:, 1]), 3.0)
    bearing = np.arctan2(ahead[:, 1], ahead[:, 0] - 2.0)
    low = np.clip(1.4 - 0.5 * ahead[:, 2], 0.25, 1.0)  # dipped: less light higher up
    beam = NIGHT.beam * np.exp(-((bearing / NIGHT.spread) ** 2)) * np.minimum(1.5, (10 / away) ** 1.5) * low
    phase = points[:, 0] % NIGHT.spacing - NIGHT.spacing / 2
    street = NIGHT.street * np.exp(-((phase / 6.0) ** 2))
    scale = np.full((*shape, 3), 0.3 * NIGHT.ambient, dtype=np.float32)  # the sky
    scale[met] = (NIGHT.ambient + beam)[:, None] + street[:, None] * _WARM
    dark = linear * scale
    lamp = np.zeros(shape, dtype=bool)
    lamp[met] = world.finishes[hits.part[met]] == FINISHES.index("lamp")
    dark[lamp] += NIGHT.lamps * world.colours[hits.part[lamp]]
    return dark


def _rained(linear: np.ndarray, camera: Camera, rng: np.random.Generator) -> np.ndarray:
    """Take contrast away, and add a veil and streaks of drops."""
    mean = float(linear.mean())
    wet = RAIN.contrast * linear + np.float32(RAIN.veil * mean)
    height, width = camera.height, camera.width
    for _ in range(RAIN.streaks):
        column, row = int(rng.integers(width)), int(rng.integers(height))
        length = int(rng.integers(height // 10, height // 3 + 1))
        wet[row : row + length, column : column + FINE] += np.float32(0.5 * mean)
    return wet
