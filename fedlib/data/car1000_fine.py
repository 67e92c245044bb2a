"""``car1000-fine``: the fine task of Car-1000, see :mod:`fedlib.data.car1000`."""

from __future__ import annotations

from pathlib import Path

from fedlib.data import car1000
from fedlib.data.files import Found
from fedlib.data.imageset import ImageSet

CARD = car1000.card("fine")


def load(*, root: Path, download: bool, size: int = 64, cap: int | None = None) -> ImageSet:
    """Load the task from a user's copy; ``download`` has no effect. See :func:`fedlib.data.car1000.load`."""
    return car1000.load("fine", root, size, cap)


def find(*, root: Path, size: int = 64, cap: int | None = None) -> Found:
    """Look for a user's copy. See :func:`fedlib.data.car1000.find`."""
    return car1000.find("fine", root, size, cap)
