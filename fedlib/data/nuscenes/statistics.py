"""What the data card of a driving set says about each domain, counted from its tables and files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from fedlib.data.nuscenes.domains import DOMAINS
from fedlib.data.nuscenes.frame import CLASSES
from fedlib.data.nuscenes.root import DrivingSet


@dataclass(frozen=True)
class DomainStatistics:
    """A domain's split in numbers.

    Attributes:
        domain: letter.
        split: train, val or warm.
        scenes: number of scenes.
        frames: number of key frames.
        boxes: number of boxes with at least one LiDAR or radar point, by class; all ten, in the devkit's order.
        moving: share of these boxes that move faster than 0.2 m/s, of those with a velocity.
        points: mean number of LiDAR points of a sweep, over the frames looked at.
        brightness: mean of the pictures, 0 to 255, over the frames looked at.
    """

    domain: str
    split: str
    scenes: int
    frames: int
    boxes: dict[str, int]
    moving: float
    points: float
    brightness: float

    @property
    def absent(self) -> tuple[str, ...]:
        """Classes without a box."""
        return tuple(name for name, number in self.boxes.items() if number == 0)

    def row(self) -> dict[str, object]:
        """Return one row of a table."""
        return {
            "domain": f"{self.domain} ({DOMAINS[self.domain].title})",
            "split": self.split,
            "scenes": self.scenes,
            "frames": self.frames,
            **{name: number / max(self.frames, 1) for name, number in self.boxes.items()},
            "moving": self.moving,
            "points": self.points,
            "brightness": self.brightness,
        }


def statistics(driving: DrivingSet, split: str, frames: int = 8) -> list[DomainStatistics]:
    """Count boxes in all frames of a split, and measure points and brightness on some, for each of its domains.

    Args:
        driving: the set.
        split: train, val or warm.
        frames: how many frames of each domain are read, evenly spread.

    Raises:
        InputError: a file that is read is missing or damaged.
    """
    found = []
    for letter in DOMAINS:
        scenes = [
            scene for scene in driving.scenes.values() if (scene.domain, scene.split) == (letter, split)
        ]
        tokens = [token for scene in scenes for token in scene.samples]
        if not tokens:
            continue
        boxes: Counter[int] = Counter()
        moving = known = 0
        for token in tokens:
            labels = driving.labels(token)
            seen = labels.num_points > 0
            boxes.update(labels.classes[seen].tolist())
            speed = np.linalg.norm(labels.boxes[seen, 7:9], axis=1)
            known += int(np.isfinite(speed).sum())
            moving += int((speed > 0.2).sum())
        some = [tokens[k] for k in np.unique(np.linspace(0, len(tokens) - 1, frames).astype(int))]
        read = [driving.frame(token, sweeps=1) for token in some]
        found.append(
            DomainStatistics(
                letter,
                split,
                len(scenes),
                len(tokens),
                {name: boxes[number] for number, name in enumerate(CLASSES)},
                moving / max(known, 1),
                float(np.mean([len(frame.points) for frame in read])),
                float(np.mean([frame.images.mean() for frame in read])),
            )
        )
    return found
