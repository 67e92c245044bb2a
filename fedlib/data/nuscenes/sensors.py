"""The files of nuScenes: LiDAR sweeps, pictures, and the transforms in the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from fedlib.errors import InputError

_POINT = 20  # bytes: x, y, z, intensity, ring as float32


def read_sweep(path: Path) -> np.ndarray:
    """Return a LiDAR sweep, float32 (N, 5): x, y, z in the sensor's frame, intensity 0 to 255, ring.

    Raises:
        InputError: no such file, no point, not a whole number of points, or a value that is not finite.
    """
    if not path.is_file():
        raise InputError(f"{path} is missing; unpack the sensor data again")
    size = path.stat().st_size
    if bad_size(size):
        raise InputError(f"{path} is truncated: {size} bytes; allowed: a positive multiple of {_POINT}")
    points = np.fromfile(path, dtype=np.float32).reshape(-1, 5)
    if not np.isfinite(points).all():
        raise InputError(f"{path} has values that are not finite; replace the file")
    return points


def bad_size(size: int) -> bool:
    """Say whether a sweep's file of so many bytes is empty or ends within a point."""
    return size == 0 or size % _POINT > 0


def read_picture(path: Path, size: tuple[int, int]) -> np.ndarray:
    """Return a picture resized to ``size`` (height, width), uint8 (height, width, 3).

    Raises:
        InputError: no such file, or not a picture.
    """
    try:
        with Image.open(path) as picture:
            picture.draft(
                "RGB", (size[1], size[0])
            )  # lets the JPEG decoder skip detail that is averaged away
            return np.asarray(picture.convert("RGB").resize((size[1], size[0]), Image.Resampling.BILINEAR))
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing; unpack the sensor data again") from error
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError) as error:
        raise InputError(f"{path}: damaged or not a picture ({error}); replace the file") from error


def rotation_of(quaternion: Sequence[float]) -> np.ndarray:
    """Return the (3, 3) rotation of a unit quaternion w, x, y, z."""
    from pyquaternion import Quaternion

    matrix: np.ndarray = Quaternion(quaternion).rotation_matrix
    return matrix


def yaw_of(quaternion: Sequence[float]) -> float:
    """Return the heading of the turned forward axis in radians, as the devkit measures it."""
    rotation = rotation_of(quaternion)
    return float(np.arctan2(rotation[1, 0], rotation[0, 0]))


def transform_of(record: Mapping[str, Any]) -> np.ndarray:
    """Return the (4, 4) transform of a calibration (sensor to car) or a pose (car to world)."""
    transform = np.eye(4)
    transform[:3, :3] = rotation_of(record["rotation"])
    transform[:3, 3] = record["translation"]
    return transform
