"""What the detector takes: LiDAR grids, pictures, projections, and the boxes to learn.

A frame is cropped once (:func:`prepare`); its grid without augmentation is made once. An augmentation of the space
acts on points, boxes and projections, never on pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedlib.data.nuscenes.frame import Frame, moved
from fedlib.models.detector import boxes as coding
from fedlib.models.detector.backbones import CHANNELS
from fedlib.models.detector.config import Config

_SLICES, _THICK, _LOWEST = 6, 0.8, -0.3  # height slices, metres above the road
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pictures, as for ResNet-50


@dataclass(frozen=True, eq=False)
class Prepared:
    """One frame, ready to be put in batches.

    Attributes:
        points: float32 (N, 5): x, y, z, intensity, seconds since measured; of the space that is seen.
        images: uint8 (V, 3, h, w).
        projections: float64 (V, 4, 4), to pixels of ``images``.
        boxes: float64 (M, 9), those to learn: with a point, and their middle in the space that is seen.
        classes: int64 (M,).
        config: that they are prepared for.
    """

    points: np.ndarray
    images: np.ndarray
    projections: np.ndarray
    boxes: np.ndarray
    classes: np.ndarray
    config: Config

    @cached_property
    def grid(self) -> np.ndarray:
        """Grid of the points, float32 (13, cells, cells); made when it is first wanted."""
        return lidar_grid(self.points, self.config)

    @property
    def nbytes(self) -> int:
        """Memory that the frame takes with its grid, bytes."""
        arrays = (self.points, self.images, self.projections, self.boxes, self.classes, self.grid)
        return sum(array.nbytes for array in arrays)


@dataclass(frozen=True, eq=False)
class Targets:
    """Boxes of a batch, filled up to the same number.

    Attributes:
        codes: float32 (B, M, 10); see ``boxes.encode``.
        classes: int64 (B, M).
        present: bool (B, M), False for filling.
    """

    codes: Tensor
    classes: Tensor
    present: Tensor


@dataclass(frozen=True, eq=False)
class Inputs:
    """A batch.

    Attributes:
        grid: float32 (B, 13, cells, cells).
        images: float32 (B, V, 3, h, w), normalised.
        projections: float32 (B, V, 4, 4).
        targets: boxes to learn.
    """

    grid: Tensor
    images: Tensor
    projections: Tensor
    targets: Targets = field(repr=False)


def prepare(frame: Frame, config: Config) -> Prepared:
    """Crop a frame read with ``image_size = config.image_size``."""
    low, high = np.array(config.box)
    # Diagonals and larger scales bring points from outside the square into it.
    near = (np.abs(frame.points[:, :2]) < 1.5 * config.reach).all(1)
    points = np.ascontiguousarray(frame.points[near])
    middles = frame.labels.boxes[:, :3]
    learned = ((middles > low) & (middles < high)).all(1) & (frame.labels.num_points > 0)
    return _with_grid(
        Prepared(
            points,
            np.ascontiguousarray(frame.images.transpose(0, 3, 1, 2)),
            frame.projections,
            frame.labels.boxes[learned],
            frame.labels.classes[learned],
            config,
        )
    )


def _with_grid(frame: Prepared) -> Prepared:
    """Make the grid now, in the process that has the frame, for all that will be forked from it."""
    _ = frame.grid
    return frame


def lidar_grid(points: np.ndarray, config: Config) -> np.ndarray:
    """Return the grid (13, cells, cells) float32, rows along y, of points (N, 5); zeros for an empty cloud.

    Channels: log(1 + count) in 6 height slices of the newest sweep and in 3 double slices of the older ones; mean
    x and y from the cell's middle in cells, intensity / 255 and z / 4 m of the newest sweep.
    """
    n = config.cells
    place = (points[:, :2] + config.reach) * (n / (2 * config.reach))
    inside = (
        (place >= 0).all(1) & (place < n).all(1) & (points[:, 2] > config.low) & (points[:, 2] < config.high)
    )
    points, place = points[inside], place[inside]
    cell = np.minimum(place.astype(np.int64), n - 1)
    flat = cell[:, 1] * n + cell[:, 0]
    level = np.clip((points[:, 2] - _LOWEST) // _THICK, 0, _SLICES - 1).astype(np.int64)
    new = points[:, 4] <= 0
    newest = np.bincount(level[new] * n * n + flat[new], minlength=_SLICES * n * n)
    older = np.bincount(level[~new] // 2 * n * n + flat[~new], minlength=_SLICES // 2 * n * n)
    counts = np.log1p(np.concatenate([newest, older]))
    number = np.maximum(newest.reshape(_SLICES, -1).sum(0), 1)
    offset = place - cell - 0.5
    values = (offset[:, 0], offset[:, 1], points[:, 3] / 255, points[:, 2] / 4)
    means = [np.bincount(flat[new], value[new], minlength=n * n) / number for value in values]
    return np.concatenate([counts, *means]).reshape(CHANNELS, n, n).astype(np.float32)


def augmentation(rng: np.random.Generator, config: Config) -> np.ndarray:
    """Return a random A (4, 4): a turn, a change of size, mirrors and a translation as ``config`` allows."""
    angle = rng.uniform(-config.rotation, config.rotation)
    scale = rng.uniform(1 - config.scale, 1 + config.scale)
    flip = np.where(config.flips & (rng.random(2) < 0.5), -1.0, 1.0)
    c, s = np.cos(angle), np.sin(angle)
    result = np.eye(4)
    result[:3, :3] *= scale
    result[:2, :2] = scale * flip[:, None] * np.array([[c, -s], [s, c]])
    result[:3, 3] = rng.normal(0, config.shift, 3)
    return result


def augmented(frame: Prepared, a: np.ndarray, config: Config) -> Prepared:
    """Return a frame in the space p' = A p: points and boxes move, projections become T A^-1."""
    points = frame.points.copy()
    points[:, :3] = frame.points[:, :3] @ a[:3, :3].T + a[:3, 3]
    boxes = moved(frame.boxes, a)
    boxes[:, 3:6] *= abs(np.linalg.det(a[:3, :3])) ** (1 / 3)
    low, high = np.array(config.box)
    kept = ((boxes[:, :3] > low) & (boxes[:, :3] < high)).all(1)
    projections = frame.projections @ np.linalg.inv(a)
    return _with_grid(Prepared(points, frame.images, projections, boxes[kept], frame.classes[kept], config))


def collate(frames: Sequence[Prepared], device: str = "cpu") -> Inputs:
    """Return a batch of frames."""
    most = max(1, max(len(frame.classes) for frame in frames))
    codes = torch.zeros(len(frames), most, len(coding.CODE_WEIGHTS))
    classes = torch.zeros(len(frames), most, dtype=torch.int64)
    present = torch.zeros(len(frames), most, dtype=torch.bool)
    for row, frame in enumerate(frames):  # over samples
        m = len(frame.classes)
        codes[row, :m] = coding.encode(torch.from_numpy(frame.boxes)).float()
        classes[row, :m] = torch.from_numpy(frame.classes)
        present[row, :m] = True
    images = torch.from_numpy(np.stack([frame.images for frame in frames])).to(device).float() / 255
    mean, std = (images.new_tensor(v)[:, None, None] for v in (_MEAN, _STD))
    targets = Targets(codes.to(device), classes.to(device), present.to(device))
    grid = torch.from_numpy(np.stack([frame.grid for frame in frames])).to(device)
    projections = torch.from_numpy(np.stack([frame.projections for frame in frames])).float().to(device)
    return Inputs(grid, (images - mean) / std, projections, targets)
