"""Picture files whose classes a table gives, as an image set: reduced once, and kept until a file changes."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedlib.data import crops, prepared
from fedlib.data.imageset import Card, ImageSet, Split
from fedlib.errors import InputError, choose

MOST_ABSENT = (
    0.01  # share of the listed pictures that may be absent; beyond it the copy is taken for incomplete
)
_RULES = 1  # raise when the rules of preparing change, so that kept pictures are made anew


@dataclass(frozen=True)
class Listed:
    """One picture of a table.

    Attributes:
        path: where the picture should be.
        label: its class.
        group: the patient, eye pair or lesion; pictures of one group are in one split.
    """

    path: Path
    label: int
    group: str


def check_options(size: int, cap: int | None) -> None:
    """Refuse a ``size`` that is not offered, and a ``cap`` that is no positive integer."""
    choose("size", size, crops.SIZES)
    if cap is not None and (isinstance(cap, bool) or not isinstance(cap, int) or cap < 1):
        raise InputError(f"cap is {cap!r}; allowed: an integer >= 1, or None")


def picture_of(folder: Path, name: str, suffixes: Sequence[str]) -> Path:
    """Return the first of ``folder/name + suffix`` that is there, or the one with the first suffix."""
    paths = [folder / (name + suffix) for suffix in suffixes]
    return next((path for path in paths if path.is_file()), paths[0])


def grouped(
    card: Card, listed: Sequence[Listed], class_names: Sequence[str], size: int, cap: int | None,
    notes: Sequence[str] = (), grey: bool = False,
) -> ImageSet:  # fmt: skip
    """Return the set, split by group: of ten groups about seven train, one validates, two test.

    The SHA-256 of a group's name decides, so the split is always the same, also on a part of the pictures.

    Raises:
        InputError: more than 1 % of the pictures are absent, a split is empty, or no picture can be read.
    """
    absent = [picture.path for picture in listed if not picture.path.is_file()]
    if len(absent) > MOST_ABSENT * len(listed):
        raise InputError(
            f"{card.name}: {len(absent)} of {len(listed)} listed pictures are absent (first: {absent[0]}); "
            "complete the copy"
        )
    parts: dict[str, list[Listed]] = {"train": [], "val": [], "test": []}
    for picture in listed:
        parts[_split_of(picture.group)].append(picture)
    jobs = {}
    for key, part in parts.items():
        if not part:
            raise InputError(f"{card.name}: {len(listed)} pictures leave the {key} split empty; add pictures")
        labels = np.array([picture.label for picture in part], dtype=np.int64)
        jobs[key] = [
            crops.Job(part[k].path, None, labels[k : k + 1])
            for k in capped(labels, len(class_names), cap).tolist()
        ]
    further = [*notes, *([f"At most {cap:,} pictures of each class in each split."] if cap else [])]
    return image_set(card, jobs, class_names, size, further, grey)


def _split_of(group: str) -> str:
    tenth = int(hashlib.sha256(group.encode()).hexdigest(), 16) % 10
    return "test" if tenth < 2 else "val" if tenth == 2 else "train"


def capped(labels: np.ndarray, num_classes: int, cap: int | None) -> np.ndarray:
    """Return which pictures are taken, in order: at most ``cap`` of each class, evenly spread."""
    if cap is None:
        return np.arange(len(labels))
    kept = []
    for number in range(num_classes):
        of_class = np.flatnonzero(labels == number)
        take = min(cap, len(of_class))
        kept.append(of_class[np.arange(take) * len(of_class) // max(take, 1)])
    return np.sort(np.concatenate(kept))


def image_set(
    card: Card, jobs: Mapping[str, Sequence[crops.Job]], class_names: Sequence[str], size: int,
    notes: Sequence[str] = (), grey: bool = False,
) -> ImageSet:  # fmt: skip
    """Return the set of the pictures of each split; the first time they are reduced to ``size`` pixels.

    Args:
        card: what is known beforehand.
        jobs: whole pictures with one label each, by split.
        class_names: in the order of the labels.
        size: side in pixels.
        notes: added to the card's.
        grey: keep one channel.

    Raises:
        InputError: no picture can be read. A single bad one is left out, and counted on the card.
    """
    state = [
        (key, str(job.path), job.labels.tolist(), crops.state(job.path))
        for key, of in jobs.items()
        for job in of
    ]
    path = prepared.path_of(f"{card.name}-{size}", state, list(class_names), _RULES)
    arrays = prepared.once(path, lambda: _prepare(jobs, size, grey))
    splits = {key: Split(arrays[f"{key}_images"], arrays[f"{key}_labels"]) for key in jobs}
    all_notes = (*card.notes, *notes, *crops.notes(arrays["skipped"].tolist()))
    return ImageSet(card.name, splits, class_names, dataclasses.replace(card, notes=all_notes))


def _prepare(jobs: Mapping[str, Sequence[crops.Job]], size: int, grey: bool) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    skipped: list[str] = []
    for key, of_split in jobs.items():
        cuts = crops.cut(of_split, size, 1.0)
        images = cuts.images[..., :1] if grey else cuts.images
        arrays |= {f"{key}_images": images, f"{key}_labels": cuts.labels}
        skipped += [str(path) for path, _ in cuts.skipped]
    return arrays | {"skipped": np.array(skipped, dtype=np.str_)}
