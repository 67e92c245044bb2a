"""From rays to pictures: sun, sky, shadows, patterns, haze, and the sensor's blur and noise.

Light is added up linearly and stored with gamma 2 (a square root), close to the sRGB curve. Only what tells shapes
apart is modelled: one sun with hard shadows, a sky as ambient light that is weaker under and beside things,
mirror-like reflection of sky and sun on paint and glass. There is no light from surface to surface.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.ndimage import gaussian_filter

from fedlib.data.roadworld.camera import Camera
from fedlib.data.roadworld.world import FINISHES, Hits, World

SUPERSAMPLE = 2  # rays along each side of a pixel
_KINDS = {name: number for number, name in enumerate(FINISHES)}


@dataclass(frozen=True, eq=False)
class Light:
    """Illumination of a scene, in linear units where a white wall in full light is about 1.

    Attributes:
        direction: (3,), unit vector towards the sun.
        sun: (3,), colour and strength of the sun; 0 when overcast.
        zenith: (3,), colour of the sky overhead, which is also the ambient light.
        horizon: (3,), colour of the sky at the horizon and of the haze.
        haze: distance in metres at which half of the contrast is gone.
    """

    direction: np.ndarray
    sun: np.ndarray
    zenith: np.ndarray
    horizon: np.ndarray
    haze: float


@dataclass(frozen=True, eq=False)
class Ground:
    """The pattern of the plane z = 0: a straight road along x with lines, and what is beside it.

    Attributes:
        middle: y of the road's axis in metres.
        half_width: half of the road's width in metres.
        lanes: y of the lane lines, relative to the axis.
        road: (3,), albedo.
        beside: (3,), albedo of pavement or grass.
        line: (3,), albedo of the lines.
        dash: phase of the dashes in metres.
        pattern: (4, 4), wave vectors (1/m) and phases of the surface texture.
    """

    middle: float
    half_width: float
    lanes: tuple[float, ...]
    road: np.ndarray
    beside: np.ndarray
    line: np.ndarray
    dash: float
    pattern: np.ndarray


@dataclass(frozen=True, eq=False)
class Sensor:
    """What the camera does to the light.

    Attributes:
        exposure: factor on the light.
        blur: standard deviation of the point spread in pixels of the picture.
        noise: standard deviation of the noise of a pixel at full scale (shot noise), in 0..1 of linear light.
        floor: standard deviation of the noise in the dark.
        balance: (3,), factors on red, green and blue.
    """

    exposure: float
    blur: float
    noise: float
    floor: float
    balance: np.ndarray


@dataclass(frozen=True, eq=False)
class Frame:
    """A picture and what each of its pixels shows.

    Attributes:
        image: uint8 (H, W, 3).
        depth: float32 (H, W), metres along the view direction; inf in the sky.
        instance: int32 (H, W), index into ``World.placed``; -1 in the sky.
    """

    image: np.ndarray
    depth: np.ndarray
    instance: np.ndarray


def render(
    world: World, camera: Camera, light: Light, ground: Ground, sensor: Sensor, rng: np.random.Generator
) -> Frame:
    """Take a picture of the world.

    Args:
        world: what is there.
        camera: from where, with which lens and how many pixels.
        light: sun and sky.
        ground: pattern of the road.
        sensor: exposure, blur, noise.
        rng: draws the sensor's noise.
    """
    fine = camera.cut(0, 0, camera.width, camera.width * SUPERSAMPLE)
    fine = Camera(
        fine.position, fine.rotation, fine.focal, fine.centre, fine.width, camera.height * SUPERSAMPLE
    )
    hits = world.intersect(fine.position, fine.rotation, fine.rays, fine.windows(world))
    linear = radiance(world, fine, hits, light, ground)
    image = expose(linear, sensor, rng)
    half = SUPERSAMPLE // 2
    return Frame(
        image,
        hits.distance[half::SUPERSAMPLE, half::SUPERSAMPLE],
        hits.instance[half::SUPERSAMPLE, half::SUPERSAMPLE],
    )


def radiance(world: World, camera: Camera, hits: Hits, light: Light, ground: Ground) -> np.ndarray:
    """Return the light that reaches the camera along each ray, float32 (H, W, 3), linear."""
    x, y, z = camera.rays
    turn = camera.rotation.astype(np.float32)
    shape = hits.face.shape
    toward = np.stack(
        [np.broadcast_to(row[0] * x + (row[1] * y + row[2] * z), shape).ravel() for row in turn], axis=1
    )
    view = toward / np.sqrt(_dot(toward, toward.T))[:, None]
    colour = _sky(view, light)
    seen = np.flatnonzero(hits.face.ravel() >= 0)
    if len(seen):
        colour[seen] = _surfaces(world, camera, hits, light, ground, seen, toward[seen], view[seen])
    return colour.reshape(*hits.face.shape, 3)


def expose(linear: np.ndarray, sensor: Sensor, rng: np.random.Generator) -> np.ndarray:
    """Blur, average to pixels, add noise and store as uint8 (H, W, 3)."""
    blurred = gaussian_filter(
        linear, (sensor.blur * SUPERSAMPLE, sensor.blur * SUPERSAMPLE, 0), mode="nearest", truncate=2.5
    )
    height, width = (side // SUPERSAMPLE for side in linear.shape[:2])
    pixels = blurred.reshape(height, SUPERSAMPLE, width, SUPERSAMPLE, 3).mean(axis=(1, 3))
    pixels *= sensor.exposure * sensor.balance.astype(np.float32)
    np.clip(pixels, 0, 1, out=pixels)
    spread = np.sqrt(sensor.noise**2 * pixels + sensor.floor**2)
    pixels += spread * rng.standard_normal(pixels.shape, dtype=np.float32)
    return np.rint(255 * np.sqrt(np.clip(pixels, 0, 1))).astype(np.uint8)


def _dot(rows: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Scalar products of rows (N, 3) with a vector (3,) or columns (3, N); term by term, so that no BLAS decides
    about threads or the order of the sum."""
    return rows[:, 0] * vector[0] + rows[:, 1] * vector[1] + rows[:, 2] * vector[2]


def _sky(view: np.ndarray, light: Light) -> np.ndarray:
    up = np.sqrt(np.clip(view[:, 2:], 0, 1))
    return (light.horizon + up * (light.zenith - light.horizon)).astype(np.float32)


def _surfaces(
    world: World,
    camera: Camera,
    hits: Hits,
    light: Light,
    ground: Ground,
    seen: np.ndarray,
    toward: np.ndarray,
    view: np.ndarray,
) -> np.ndarray:
    distance = hits.distance.ravel()[seen]
    part = hits.part.ravel()[seen]
    face = hits.face.ravel()[seen]
    normal = world.normals.astype(np.float32)[face]
    point = camera.position.astype(np.float32) + distance[:, None] * toward
    finish, albedo = world.finishes[part], world.colours[part].copy()
    texture = _texture(point, ground.pattern)

    _paint_ground(albedo, point, finish == _KINDS["ground"], ground)
    _paint_facades(albedo, point, normal, finish == _KINDS["facade"])
    leaves = finish == _KINDS["leaves"]
    albedo[leaves] *= 0.35 + 1.3 * _texture(4 * point[leaves], ground.pattern)[:, None]
    matt = (finish == _KINDS["matt"]) | (finish == _KINDS["ground"]) | (finish == _KINDS["facade"])
    albedo[matt] *= 0.75 + 0.5 * texture[matt, None]

    facing = np.clip(_dot(normal, light.direction.astype(np.float32)), 0, 1)
    if light.sun.any():
        lit = np.flatnonzero(facing > 0)
        dark = world.shaded(point[lit] + 0.004 * normal[lit], light.direction)
        facing[lit[dark]] = 0
    ambient = (0.62 + 0.38 * normal[:, 2]) * _openness(world, point, normal)
    incoming = facing[:, None] * light.sun + ambient[:, None] * light.zenith
    colour = albedo * incoming

    shiny = np.flatnonzero((finish == _KINDS["paint"]) | (finish == _KINDS["glass"]))
    if len(shiny):
        colour[shiny] += _reflection(view[shiny], normal[shiny], facing[shiny], finish[shiny], light)
    lamp = finish == _KINDS["lamp"]
    colour[lamp] += 0.25 * albedo[lamp]
    clear = (light.haze / (light.haze + distance))[:, None]
    return (colour * clear + light.horizon * (1 - clear)).astype(np.float32)


def _reflection(
    view: np.ndarray, normal: np.ndarray, facing: np.ndarray, finish: np.ndarray, light: Light
) -> np.ndarray:
    cosine = np.clip(-_dot(view, normal.T), 0, 1)[:, None]
    mirror = view + 2 * cosine * normal
    grazing = (1 - cosine) ** 2
    share = 0.04 + 0.9 * grazing * grazing * (1 - cosine)  # Schlick, 1994
    share = np.where((finish == _KINDS["glass"])[:, None], share + 0.05, share)
    scene = np.where(mirror[:, 2:] > 0.03, _sky(mirror, light), 0.18 * light.zenith)
    glint = np.clip(_dot(mirror, light.direction.astype(np.float32)), 0, 1)
    for _ in range(6):  # to the 64th power
        glint = glint * glint
    return share * scene + 0.35 * (glint * (facing > 0))[:, None] * light.sun


def _openness(world: World, point: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Share of the sky that is not hidden: low close to the ground and beside bodies that stand on it."""
    open_ = np.clip(0.55 + point[:, 2], 0, 1)  # lower parts of bodies face the dark road
    flat = (normal[:, 2] > 0.9) & (point[:, 2] < 0.05)
    open_[flat] = 1
    ground = np.flatnonzero(flat)
    if len(ground):
        near = np.ones(len(ground), dtype=np.float32)
        for item in world.placed:
            if item.shade:
                low, high = item.body.bounds
                c, s = np.cos(item.yaw), np.sin(item.yaw)
                dx, dy = point[ground, 0] - item.position[0], point[ground, 1] - item.position[1]
                x, y = c * dx + s * dy, -s * dx + c * dy
                out = np.maximum(np.maximum(low[0] - x, x - high[0]), np.maximum(low[1] - y, y - high[1]))
                reach = 0.25 * float(high[2])
                near = np.minimum(near, np.clip(0.3 + 0.7 * (out + 0.3 * reach) / (1.3 * reach), 0.25, 1))
        open_[ground] = near
    return open_


def _texture(point: np.ndarray, pattern: np.ndarray) -> np.ndarray:
    """Smooth variation in 0..1 over space: a mean of triangle waves, whose bits do not depend on the processor."""
    total = np.zeros(len(point), dtype=np.float32)
    for wave in pattern.astype(np.float32):
        phase = _dot(point, wave) + wave[3]
        total += 2 * np.abs(phase - np.floor(phase) - np.float32(0.5))
    return total / len(pattern)


def _paint_ground(albedo: np.ndarray, point: np.ndarray, where: np.ndarray, ground: Ground) -> None:
    rows = np.flatnonzero(where)
    if not len(rows):
        return
    x, y = point[rows, 0], point[rows, 1] - ground.middle
    colour = np.where((np.abs(y) < ground.half_width)[:, None], ground.road, ground.beside)
    kerb = np.abs(np.abs(y) - ground.half_width - 0.1) < 0.1
    colour[kerb] = 0.7 * ground.beside + 0.15
    edge = np.abs(np.abs(y) - ground.half_width + 0.3) < 0.08
    for lane in ground.lanes:
        edge |= (np.abs(y - lane) < 0.08) & ((x + ground.dash) % 6 < 3)
    colour[edge] = ground.line
    albedo[rows] = colour


def _paint_facades(albedo: np.ndarray, point: np.ndarray, normal: np.ndarray, where: np.ndarray) -> None:
    rows = np.flatnonzero(where & (np.abs(normal[:, 2]) < 0.5))
    if not len(rows):
        return
    along = point[rows, 0] * normal[rows, 1] - point[rows, 1] * normal[rows, 0]
    column, floor = (along / 2.4) % 1, (point[rows, 2] / 3.1) % 1
    pane = (column > 0.2) & (column < 0.75) & (floor > 0.3) & (floor < 0.8)
    albedo[rows[pane]] = (0.07, 0.08, 0.09)
