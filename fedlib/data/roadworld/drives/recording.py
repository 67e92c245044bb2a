"""One drive from its random stream to its files and records; drives are recorded in parallel."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from fedlib import files, seeds
from fedlib.data.nuscenes.domains import DOMAINS
from fedlib.data.nuscenes.frame import CAMERAS, LIDAR
from fedlib.data.roadworld.camera import Camera
from fedlib.data.roadworld.drives import rig, traffic
from fedlib.data.roadworld.drives.conditions import city_of
from fedlib.data.roadworld.drives.photograph import FINE, photograph
from fedlib.data.roadworld.drives.scan import sweep
from fedlib.data.roadworld.drives.tables import Recorder, Records
from fedlib.data.roadworld.solids import turned
from fedlib.data.roadworld.world import Hits, World

_JPEG = 95
_MAP_METRES, _MAP_STEP = (
    160,
    0.1,
)  # side of a map, metres; metres of a pixel, which the devkit takes for granted
_GRID = np.array([(x, y, z) for x in (-0.8, 0, 0.8) for y in (-0.8, 0, 0.8) for z in (-0.8, 0, 0.8)])


@dataclass(frozen=True)
class Recipe:
    """What decides the files of every drive.

    Attributes:
        frames: key frames in a drive.
        sweeps: LiDAR sweeps between key frames.
        image_size: height and width of the pictures, pixels.
        beams: of the LiDAR.
        azimuths: directions of the LiDAR around.
        reach: metres before and behind the middle of the drive with road users.
        seed: of the generator.
    """

    frames: int
    sweeps: int
    image_size: tuple[int, int]
    beams: int
    azimuths: int
    reach: float
    seed: int


@dataclass(frozen=True)
class Job:
    """A drive to record.

    Attributes:
        number: place among all drives; decides time stamps.
        domain: letter.
        split: train, val or warm.
        index: within the split of the domain.
    """

    number: int
    domain: str
    split: str
    index: int

    @property
    def name(self) -> str:
        """Of the scene."""
        return f"synth-{self.domain}-{self.split}-{self.index:04d}"


def record(folder: Path, recipe: Recipe, job: Job) -> Records:
    """Record a drive: write its files below ``folder`` and return its records.

    Everything is drawn from a stream of the drive's own, so that neither other drives nor the number of processes
    change it.
    """
    rng = seeds.rng(recipe.seed, "drives", job.domain, job.split, job.index)
    domain = DOMAINS[job.domain]
    drive = traffic.drive(domain, recipe.frames, recipe.reach, recipe.seed, rng)
    city = city_of(domain)
    mounts = rig.mounts(city, recipe.image_size)
    recorder = Recorder(job.name, job.number, drive, mounts, recipe.image_size)
    files.write_atomic(folder / recorder.tables["map"][0]["filename"], _map(drive))
    vehicles = range(1, 1 + len(drive.actors))

    def scan(time: float, world: World, k: int, key: bool) -> np.ndarray:
        place = drive.ego(time) @ mounts[LIDAR].to_ego
        phase = float(rng.uniform(0, 2 * np.pi))
        scanner = rig.Scanner(place[:3, 3], place[:3, :3], recipe.beams, recipe.azimuths, phase)
        points = sweep(world, scanner, drive.ground, city, domain.rain, vehicles, rng)
        files.write_atomic(folder / recorder.data(LIDAR, time, k, key), points.tobytes())
        return points[:, :3] @ place[:3, :3].T + place[:3, 3]

    for k, time in enumerate(drive.times.tolist()):
        for number in range(recipe.sweeps, 0, -1):
            before = time - number * traffic.INTERVAL / (recipe.sweeps + 1)
            scan(before, drive.world(before), k, False)
        world, ego = drive.world(time), drive.ego(time)
        points = scan(time, world, k, True)
        views = []
        for channel in CAMERAS:
            camera = rig.camera(mounts[channel], ego, recipe.image_size, FINE)
            picture, hits = photograph(drive, world, camera, ego, rng)
            views.append((camera, hits))
            files.write_atomic(folder / recorder.data(channel, time, k, True), _jpeg(picture))
        for number, actor in enumerate(drive.actors):
            placed = actor.placed(time)
            local = (points - placed.position) @ turned(placed.yaw)
            low, high = actor.body.bounds
            inside = ((local >= low) & (local <= high)).all(axis=1)
            grid = placed.to_world((low + high) / 2 + _GRID * (high - low) / 2)
            recorder.annotation(number, actor, k, visibility(grid, number + 1, views), int(inside.sum()))
    return recorder.finished()


def visibility(grid: np.ndarray, instance: int, views: list[tuple[Camera, Hits]]) -> int:
    """Return the nuScenes level, 1 (0 to 40 %) to 4 (80 to 100 %), of how much of a body the cameras see.

    Args:
        grid: points (N, 3) in the body's box.
        instance: of the body in the world.
        views: cameras, and what their rays met.
    """
    shown, framed = np.zeros(len(grid), dtype=bool), np.zeros(len(grid), dtype=bool)
    for camera, hits in views:
        pixels, depth = camera.project(grid)
        with np.errstate(invalid="ignore"):
            inside = ((pixels >= 0) & (pixels < (camera.width, camera.height))).all(axis=1)
        column, row = np.nan_to_num(pixels[inside]).astype(np.int64).T
        clear = (hits.instance[row, column] == instance) | (hits.distance[row, column] > depth[inside])
        framed |= inside
        shown[inside] |= clear
    if not framed.any():
        return 1
    share = shown.sum() / framed.sum()
    return 1 + int(np.searchsorted([0.4, 0.6, 0.8], share, side="right"))


def _jpeg(picture: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=_JPEG)
    return buffer.getvalue()


def _map(drive: traffic.Drive) -> bytes:
    """Draw road and pavements as the devkit's mask: 255 where one may drive or walk; y upwards."""
    side = round(_MAP_METRES / _MAP_STEP)
    mask = Image.new("L", (side, side), 0)
    half = drive.ground.half_width + 2.5
    corners = np.array([(x, y, 0, 1) for x, y in ((-200, -half), (200, -half), (200, half), (-200, half))])
    x, y = (corners @ drive.to_world.T)[:, :2].T / _MAP_STEP
    ImageDraw.Draw(mask).polygon(list(zip(x.tolist(), (side - y).tolist())), fill=255)
    buffer = io.BytesIO()
    mask.save(buffer, "PNG")
    return buffer.getvalue()
