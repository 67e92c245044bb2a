"""Square crops out of picture files, many files at a time; a bad file costs only its own crops."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from fedlib.data import dicom, prepared
from fedlib.errors import InputError

log = logging.getLogger(__name__)

SIZES = (32, 64, 128, 224)  # sides in pixels of prepared crops
_BAD = (OSError, UnidentifiedImageError, Image.DecompressionBombError, ValueError, SyntaxError)


@dataclass(frozen=True)
class Job:
    """Crops to cut out of one file.

    Attributes:
        path: the picture; .dcm is read as DICOM.
        boxes: float (N, 4), left, top, right, bottom in pixels; None takes the whole picture once.
        labels: int64 (N,), class of each crop.
    """

    path: Path
    boxes: np.ndarray | None
    labels: np.ndarray


@dataclass(frozen=True)
class Cuts:
    """What came out.

    Attributes:
        images: uint8 (N, size, size, 3).
        labels: int64 (N,).
        skipped: files that could not be read, with the reason.
    """

    images: np.ndarray
    labels: np.ndarray
    skipped: list[tuple[Path, str]]


def cut(jobs: Sequence[Job], size: int, margin: float) -> Cuts:
    """Cut all crops, in the order of the jobs.

    The window is a square around the middle of the box, ``margin`` times its longer side wide, so that shapes keep
    their proportions. What of it lies outside of the picture repeats the picture's edge.

    Raises:
        InputError: not one file could be read.
    """
    with ThreadPoolExecutor(prepared.workers()) as pool:  # Pillow decodes outside of the interpreter's lock
        results = list(pool.map(lambda job: _cut_file(job, size, margin), jobs))
    good = [(images, job.labels) for job, images in zip(jobs, results) if isinstance(images, np.ndarray)]
    skipped = [(job.path, reason) for job, reason in zip(jobs, results) if isinstance(reason, str)]
    for path, reason in skipped:
        log.warning("%s is skipped: %s", path, reason)
    if not good:
        first = f"; the first: {skipped[0][0]}: {skipped[0][1]}" if skipped else ""
        raise InputError(f"none of {len(jobs)} pictures could be read{first}")
    return Cuts(
        np.concatenate([images for images, _ in good]),
        np.concatenate([labels for _, labels in good]),
        skipped,
    )


def notes(skipped: Sequence[str]) -> tuple[str, ...]:
    """Return the sentence for the card about skipped files (paths), if there are any."""
    if not skipped:
        return ()
    return (
        f"{len(skipped)} picture{'s' * (len(skipped) > 1)} could not be read and left out (first: {skipped[0]}).",
    )


def state(path: Path) -> str:
    """Return what tells two versions of a file apart without reading it; empty if it is absent."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def _cut_file(job: Job, size: int, margin: float) -> np.ndarray | str:
    """Return the crops (N, size, size, 3), or why there are none."""
    try:
        if job.path.suffix.lower() == ".dcm":
            pixels = np.repeat(dicom.read(job.path)[..., None], 3, axis=2)
        else:
            with Image.open(job.path) as picture:
                pixels = np.asarray(picture.convert("RGB"))
    except _BAD as error:
        if not job.path.is_file():
            return "there is no such file"
        return f"damaged or not a picture ({str(error).replace(str(job.path), job.path.name)})"
    height, width = pixels.shape[:2]
    boxes = np.array([[0, 0, width, height]]) if job.boxes is None else job.boxes
    return np.stack([_window(pixels, box, size, margin) for box in boxes])


def _window(pixels: np.ndarray, box: np.ndarray, size: int, margin: float) -> np.ndarray:
    height, width = pixels.shape[:2]
    left, top, right, bottom = (float(value) for value in box)
    side = max(1, round(margin * max(right - left, bottom - top)))
    first_row, first_column = round((top + bottom - side) / 2), round((left + right - side) / 2)
    rows = np.clip(np.arange(first_row, first_row + side), 0, height - 1)
    columns = np.clip(np.arange(first_column, first_column + side), 0, width - 1)
    window = Image.fromarray(pixels[rows[:, None], columns])
    return np.asarray(window.resize((size, size), Image.Resampling.BILINEAR))
