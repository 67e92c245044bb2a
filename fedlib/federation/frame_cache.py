"""Frames that memory does not hold: each is prepared once, when it is first wanted, into a file of its own.

All of nuScenes at the paper's size would take about 750 GB of memory; in files, without the LiDAR grids, which are
made from the points whenever they are wanted, it takes about 250 GB of disk.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload
from urllib.parse import quote

import numpy as np

from fedlib.data import prepared
from fedlib.data.nuscenes import SPLITS, WARM, DrivingSet
from fedlib.errors import InputError
from fedlib.models.detector import Config, Prepared, prepare

IN_MEMORY = 2 * 2**30  # bytes of all frames of a data set up to which they stay in memory
_RULES = 1  # how frames are read and cropped; another number prepares them anew


@dataclass(frozen=True, eq=False)
class FrameCache(Sequence[Prepared]):
    """Prepared frames in the state folder, read when they are wanted; a damaged file is made anew.

    Attributes:
        driving: where the frames come from.
        tokens: of the samples.
        config: of the detector.
        sweeps: LiDAR sweeps that are joined.
    """

    driving: DrivingSet
    tokens: tuple[str, ...]
    config: Config
    sweeps: int

    def __len__(self) -> int:
        return len(self.tokens)

    @overload
    def __getitem__(self, index: int) -> Prepared: ...
    @overload
    def __getitem__(self, index: slice) -> FrameCache: ...
    def __getitem__(self, index: int | slice) -> Prepared | FrameCache:
        if isinstance(index, slice):
            return self.of(self.tokens[index])
        token = self.tokens[index]
        arrays = prepared.once(self.path(token), lambda: self._stored(self.read(token)))
        return Prepared(**arrays, config=self.config)

    def of(self, tokens: Sequence[str]) -> FrameCache:
        """Return other frames of the same data set."""
        return replace(self, tokens=tuple(tokens))

    def read(self, token: str) -> Prepared:
        """Return a frame from the files of the data set.

        Raises:
            InputError: the sample is unknown, or one of its files is missing or damaged.
        """
        frame = self.driving.frame(token, sweeps=self.sweeps, image_size=self.config.image_size)
        return prepare(frame, self.config)

    @property
    def folder(self) -> Path:
        """Where the files lie: the tables of the data set and what frames are cropped by decide it."""
        tables = self.driving.card.checksum or str(self.driving.folder)
        size = (self.config.image_size, self.config.box, self.sweeps)
        return prepared.path_of(f"frames-{self.driving.name}", tables, *size, _RULES, suffix="")

    def path(self, token: str) -> Path:
        """Return the file of a frame."""
        return self.folder / f"{quote(token, safe='')}.npz"

    def check(self, example: Prepared) -> None:
        """Look, before any frame is stored, whether all can be.

        Args:
            example: one of the frames, for its size.

        Raises:
            InputError: a file of a frame that is not stored yet is missing or truncated, or the disk has no room
                for all frames of the data set.
        """
        done = {path.name for path in self.folder.glob("*.npz")}
        absent = [token for token in self.tokens if self.path(token).name not in done]
        if missing := self.driving.missing_files(absent, sweeps=self.sweeps):
            raise InputError(
                f"{len(missing):,} files of {self.driving.name} are missing or truncated, the first is "
                f"{missing[0]}; allowed: none, with sweeps = {self.sweeps}"
            )
        needed = sum(array.nbytes for array in self._stored(example).values()) * (
            frames_of(self.driving) - len(done)
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise InputError(
                f"the prepared frames of {self.driving.name} need {needed / 1e9:,.1f} GB more in {self.folder}; "
                f"allowed: the {free / 1e9:,.1f} GB that are free there (FEDLIB_HOME names another disk)"
            )

    @staticmethod
    def _stored(frame: Prepared) -> dict[str, np.ndarray]:
        names = ("points", "images", "projections", "boxes", "classes")
        return {name: getattr(frame, name) for name in names}


def frames_of(driving: DrivingSet) -> int:
    """Return the number of key frames of all splits and domains."""
    return sum(len(scene.samples) for scene in driving.scenes.values() if scene.split in (*SPLITS, WARM))


def prepared_frames(
    driving: DrivingSet, tokens: Sequence[str], config: Config, sweeps: int
) -> Sequence[Prepared]:
    """Return the frames of some samples: in memory where it would hold all of the data set, else a ``FrameCache``.

    Args:
        driving: a root in nuScenes format.
        tokens: of the samples.
        config: of the detector.
        sweeps: LiDAR sweeps to join, the newest included.

    Raises:
        InputError: a sample is unknown, one of its files is missing or damaged, or neither memory nor disk holds
            the frames.
    """
    cache = FrameCache(driving, tuple(tokens), config, sweeps)
    if not tokens:
        return ()
    stored = cache.path(tokens[0]).is_file()
    first = cache[0] if stored else cache.read(tokens[0])
    if first.nbytes * frames_of(driving) <= IN_MEMORY:
        return (first, *map(cache.read, tokens[1:]))
    cache.check(first)
    return cache
