"""A pin-hole camera at a place in the world; x right, y down, z forward, as in nuScenes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedlib.data.roadworld.world import World

_NEAR = 0.05  # metres; nothing nearer is projected


@dataclass(frozen=True, eq=False)
class Camera:
    """Intrinsics, extrinsics and picture size.

    Attributes:
        position: (3,) in the world, metres.
        rotation: (3, 3), from the camera's frame to the world's.
        focal: (fx, fy) in pixels.
        centre: (cx, cy), principal point in pixels; the middle of the first pixel is (0.5, 0.5).
        width: pixels.
        height: pixels.
    """

    position: np.ndarray
    rotation: np.ndarray
    focal: tuple[float, float]
    centre: tuple[float, float]
    width: int
    height: int

    @property
    def rays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Directions through the middle of every pixel, z = 1, as float32 (1, W), (H, 1) and (1, 1)."""
        x = (np.arange(self.width) + 0.5 - self.centre[0]) / self.focal[0]
        y = (np.arange(self.height) + 0.5 - self.centre[1]) / self.focal[1]
        return x.astype(np.float32)[None, :], y.astype(np.float32)[:, None], np.ones((1, 1), dtype=np.float32)

    def project(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return pixel positions (N, 2) and depths (N,) of world points (N, 3); behind the camera is NaN."""
        local = (points - self.position) @ self.rotation
        depth = local[:, 2]
        safe = np.where(depth > _NEAR, depth, np.nan)
        return local[:, :2] / safe[:, None] * self.focal + self.centre, depth

    def windows(self, world: World) -> np.ndarray:
        """Return the rows and columns (P, 4) of pixels that can show each part, for :meth:`World.intersect`."""
        pixels, depth = self.project(world.corners)
        starts = world.corner_starts[:-1]
        behind = depth <= _NEAR
        some, every = np.logical_or.reduceat(behind, starts), np.logical_and.reduceat(behind, starts)
        bounds = []
        for axis, size in ((1, self.height), (0, self.width)):
            low = np.floor(np.minimum.reduceat(pixels[:, axis], starts) - 0.5)
            high = np.ceil(np.maximum.reduceat(pixels[:, axis], starts) + 0.5)
            bounds += [np.where(some, 0, np.clip(low, 0, size)), np.where(some, size, np.clip(high, 0, size))]
        result = np.nan_to_num(np.stack(bounds, axis=1)).astype(np.int64)
        result[every] = 0
        return result

    def cut(self, left: float, top: float, side: float, pixels: int) -> Camera:
        """Return the camera whose picture is a square of this one's, resampled.

        Args:
            left: first column of the square, may lie outside of the picture.
            top: first row.
            side: of the square in pixels of this camera.
            pixels: side of the new picture.
        """
        zoom = pixels / side
        return replace(
            self,
            focal=(self.focal[0] * zoom, self.focal[1] * zoom),
            centre=((self.centre[0] - left) * zoom, (self.centre[1] - top) * zoom),
            width=pixels,
            height=pixels,
        )


def look_at(
    position: np.ndarray, target: np.ndarray, focal: float, width: int, height: int, roll: float = 0.0
) -> Camera:
    """Return a camera at ``position`` that looks at ``target``; ``roll`` in radians about the view direction."""
    forward = np.asarray(target, dtype=np.float64) - position
    forward = forward / np.linalg.norm(forward)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    down = np.cross(forward, right)
    c, s = np.cos(roll), np.sin(roll)
    rotation = np.stack([c * right + s * down, c * down - s * right, forward], axis=1)
    return Camera(
        np.asarray(position, dtype=np.float64),
        rotation,
        (focal, focal),
        (width / 2, height / 2),
        width,
        height,
    )
