"""The recording car: six cameras and a LiDAR with 32 beams, mounted about as on the cars of nuScenes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedlib.data.nuscenes.frame import CAMERAS, LIDAR
from fedlib.data.roadworld.camera import Camera
from fedlib.data.roadworld.drives.conditions import City
from fedlib.data.roadworld.world import World

#: Yaw in degrees, place on the car in metres, and focal length as share of the picture's width.
_CAMERAS = {
    "CAM_FRONT": (0.0, (1.70, 0.0, 1.51), 0.79),
    "CAM_FRONT_RIGHT": (-56.0, (1.55, -0.49, 1.50), 0.79),
    "CAM_BACK_RIGHT": (-110.0, (1.02, -0.48, 1.56), 0.79),
    "CAM_BACK": (180.0, (0.03, 0.0, 1.58), 0.506),
    "CAM_BACK_LEFT": (109.0, (1.03, 0.48, 1.59), 0.79),
    "CAM_FRONT_LEFT": (55.0, (1.52, 0.49, 1.51), 0.79),
}
_HORIZON = 0.45  # height of the principal point / height of the picture
_LIDAR_PLACE = (0.94, 0.0)
_ELEVATION = (-30.67, 10.67)  # degrees, lowest and highest beam


@dataclass(frozen=True, eq=False)
class Mount:
    """A sensor on the car.

    Attributes:
        channel: name.
        to_ego: (4, 4), from the sensor's frame to the car's.
        intrinsic: (3, 3) in pixels of the stored picture; None for the LiDAR.
    """

    channel: str
    to_ego: np.ndarray
    intrinsic: np.ndarray | None = None


def mounts(city: City, image_size: tuple[int, int]) -> dict[str, Mount]:
    """Return all sensors of the car of a city by channel.

    Args:
        city: decides the height of the LiDAR and the pitch of the cameras.
        image_size: height and width of the pictures in pixels.
    """
    height, width = image_size
    found = {}
    for channel in CAMERAS:
        degrees, place, share = _CAMERAS[channel]
        yaw, pitch = math.radians(degrees), city.pitch
        flat = math.cos(pitch)
        forward = np.array([math.cos(yaw) * flat, math.sin(yaw) * flat, -math.sin(pitch)])
        right = np.array([math.sin(yaw), -math.cos(yaw), 0.0])
        to_ego = np.eye(4)
        to_ego[:3, :3] = np.stack([right, np.cross(forward, right), forward], axis=1)
        to_ego[:3, 3] = place
        focal = share * width
        intrinsic = np.array([[focal, 0, width / 2], [0, focal, _HORIZON * height], [0, 0, 1.0]])
        found[channel] = Mount(channel, to_ego, intrinsic)
    lidar = np.eye(4)
    lidar[:3, :3] = [[0, 1, 0], [-1, 0, 0], [0, 0, 1]]  # x right, y forward
    lidar[:3, 3] = *_LIDAR_PLACE, city.lidar_height
    found[LIDAR] = Mount(LIDAR, lidar)
    return found


def camera(mount: Mount, ego: np.ndarray, image_size: tuple[int, int], fine: int) -> Camera:
    """Return the camera at a pose of the car, with ``fine`` rays along each side of a stored pixel."""
    assert mount.intrinsic is not None
    to_street = ego @ mount.to_ego
    (fx, _, cx), (_, fy, cy), _ = (fine * mount.intrinsic).tolist()
    height, width = image_size
    return Camera(to_street[:3, 3], to_street[:3, :3], (fx, fy), (cx, cy), fine * width, fine * height)


@dataclass(frozen=True, eq=False)
class Scanner:
    """The LiDAR at a place of the world: beams at fixed elevations, turned through a full circle.

    Attributes:
        position: (3,).
        rotation: (3, 3), from the sensor's frame (x right, y forward) to the street's.
        beams: number of elevations, lowest first.
        azimuths: number of directions around, starting at the back.
        phase: of the first direction, radians.
    """

    position: np.ndarray
    rotation: np.ndarray
    beams: int
    azimuths: int
    phase: float

    @property
    def elevation(self) -> np.ndarray:
        """Angles (H,) above the horizontal, radians."""
        return np.radians(np.linspace(*_ELEVATION, self.beams))

    @property
    def step(self) -> float:
        """Angle between two directions, radians."""
        return 2 * math.pi / self.azimuths

    @property
    def rays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Unit directions in the sensor's frame, float32 (H, W), (H, W) and (H, 1)."""
        turn = self.phase + self.step * np.arange(self.azimuths)
        flat, up = np.cos(self.elevation)[:, None], np.sin(self.elevation)[:, None]
        x, y = -flat * np.sin(turn), -flat * np.cos(turn)
        return x.astype(np.float32), y.astype(np.float32), up.astype(np.float32)

    def windows(self, world: World) -> np.ndarray:
        """Return the rows and columns (P, 4) of rays that can meet each part, for :meth:`World.intersect`."""
        local = (world.spheres[:, :3] - self.position) @ self.rotation
        radius = world.spheres[:, 3] + 1e-3
        flat, distance = np.hypot(local[:, 0], local[:, 1]), np.linalg.norm(local, axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            aside = np.where(flat > radius, np.arcsin(radius / flat), np.inf)
            above = np.where(distance > radius, np.arcsin(radius / distance), np.inf)
        middle = np.arctan2(local[:, 2], flat)
        turn = (np.arctan2(-local[:, 0], -local[:, 1]) - self.phase) % (2 * np.pi) / self.step
        left, right = np.floor(turn - aside / self.step), np.ceil(turn + aside / self.step) + 1
        around = (left < 0) | (right > self.azimuths)  # crosses the seam, or everywhere
        first = np.searchsorted(self.elevation, middle - above)
        last = np.searchsorted(self.elevation, middle + above, side="right")
        return np.stack(
            [first, last, np.where(around, 0, left), np.where(around, self.azimuths, right)], axis=1
        ).astype(np.int64)
