"""``nuimages``: crops of road users out of nuImages (Motional, 2020), from a user's copy.

The copy is read by nuscenes-devkit: folders ``v1.0-train`` and ``v1.0-val`` with the tables, ``samples`` with the
pictures, in the data folder or in ``nuimages`` below it. Boxes are grouped to the ten nuScenes detection classes
by the devkit's own mapping (which leaves out animals, racks, emergency vehicles, personal mobility and the like);
boxes whose longer side is under 24 pixels are left out. The official train split is the training split here, the
official validation split is the test split (the official test split has no labels).

Cutting takes minutes, so it is done once: the crops are kept in the state folder until the tables change.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from fedlib.data import crops, prepared
from fedlib.data.files import Found, reading
from fedlib.data.imageset import Card, ImageSet, Split
from fedlib.data.nuscenes.frame import CLASSES
from fedlib.errors import InputError, choose

NAME = "nuimages"
RARE = "truck"
SMALLEST = 24  # pixels, longer side of a box
MARGIN = 1.1  # side of the square crop / longer side of the box
VERSIONS = {"train": "v1.0-train", "test": "v1.0-val"}
TABLES = ("category", "object_ann", "sample_data")
_RULES = 1  # raise when the rules of cutting change, so that kept crops are made anew

CARD = Card(
    name=NAME,
    title="nuImages (crops of 2D boxes)",
    kind="real",
    source="nuImages, https://www.nuscenes.org/nuimages (registration)",
    licence="CC BY-NC-SA 4.0 with the nuScenes terms of use; free for non-commercial use",
    citation="H. Caesar, V. Bankiti, A. H. Lang, S. Vora, V. E. Liong, Q. Xu, A. Krishnan, Y. Pan, G. Baldan, "
    "O. Beijbom. nuScenes: A multimodal dataset for autonomous driving. CVPR, 2020.",
    notes=(
        "Square crops around 2D boxes whose longer side has at least 24 pixels, resized.",
        "Classes grouped as for nuScenes detection; the rare class is truck.",
        "The official validation split is the test split.",
    ),
)


def load(*, root: Path, download: bool, size: int = 64, cap: int | None = 5000) -> ImageSet:
    """Load the crops; the first time they are cut out of the pictures.

    Args:
        root: folder that holds the copy, or whose subfolder ``nuimages`` does.
        download: without effect; nuImages needs a registration.
        size: side of the crops in pixels: 32, 64, 128 or 224.
        cap: most crops of each class in each split, chosen by the order of the (random) tokens; None takes all.

    Raises:
        InputError: no copy, a table missing or damaged (the message names its file), no readable picture, or an
            option out of range. A single bad picture is skipped and counted on the card.
    """
    _check(size, cap)
    found = find(root=root)
    if found.where is None:
        raise InputError(f"{NAME} is not in {root}. {found.what_to_do}")
    folder = found.where
    tables = [folder / version / f"{table}.json" for version in VERSIONS.values() for table in TABLES]
    state = [(path.name, crops.state(path)) for path in tables]
    path = prepared.path_of(f"{NAME}-{size}", str(folder.resolve()), state, cap, _RULES)
    arrays = prepared.once(path, lambda: _prepare(folder, size, cap), _unchanged)
    splits = {key: Split(arrays[f"{key}_images"], arrays[f"{key}_labels"]) for key in VERSIONS}
    card = dataclasses.replace(
        CARD, notes=CARD.notes + _cap_note(cap) + crops.notes(arrays["skipped"].tolist())
    )
    return ImageSet(NAME, splits, CLASSES, card)


def find(*, root: Path, size: int = 64, cap: int | None = 5000) -> Found:
    """Look for the folders of the tables; the options make no difference to it.

    Raises:
        InputError: an option out of range.
    """
    _check(size, cap)
    for folder in (root / NAME, root):
        if all((folder / version).is_dir() for version in VERSIONS.values()):
            return Found(NAME, present=True, where=folder, what_to_do="")
    what = (
        "Register at https://www.nuscenes.org/nuimages, fetch the metadata and the samples, and unpack both "
        f"in {root / NAME}, so that it holds {', '.join(VERSIONS.values())} and samples; "
        "then run data_scripts/nuimages_crops.py"
    )
    return Found(NAME, present=False, where=None, what_to_do=what)


def _check(size: int, cap: int | None) -> None:
    choose("size", size, crops.SIZES)
    if cap is not None and (isinstance(cap, bool) or not isinstance(cap, int) or cap < 1):
        raise InputError(f"cap is {cap!r}; allowed: an integer >= 1, or None")


def _cap_note(cap: int | None) -> tuple[str, ...]:
    return () if cap is None else (f"At most {cap:,} crops of each class in each split.",)


def _unchanged(arrays: dict[str, np.ndarray]) -> bool:
    """Say whether the files that could not be read are still the same."""
    return all(
        crops.state(Path(path)) == state for path, state in zip(arrays["skipped"], arrays["skipped_state"])
    )


def _prepare(folder: Path, size: int, cap: int | None) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    skipped: list[str] = []
    for key, version in VERSIONS.items():
        cuts = crops.cut(_jobs(folder, version, cap), size, MARGIN)
        arrays |= {f"{key}_images": cuts.images, f"{key}_labels": cuts.labels}
        skipped += [str(path) for path, _ in cuts.skipped]
    arrays["skipped"] = np.array(skipped, dtype=np.str_)
    arrays["skipped_state"] = np.array([crops.state(Path(path)) for path in skipped], dtype=np.str_)
    return arrays


def _jobs(folder: Path, version: str, cap: int | None) -> list[crops.Job]:
    """Return one job for each picture that has a box to cut out, in the order of the pictures' names."""
    tables = _tables(folder, version)
    with reading(folder / version / "category.json"):
        numbers = {record["token"]: _class_number(record["name"]) for record in tables["category"]}
    with reading(folder / version / "sample_data.json"):
        names = {record["token"]: record["filename"] for record in tables["sample_data"]}
    taken = [0] * len(CLASSES)
    wanted: dict[str, list[tuple[list[float], int]]] = {}
    with reading(folder / version / "object_ann.json"):
        for record in sorted(tables["object_ann"], key=lambda record: record["token"]):
            number, box = numbers[record["category_token"]], [float(value) for value in record["bbox"]]
            left, top, right, bottom = box
            if number is None or max(right - left, bottom - top) < SMALLEST:
                continue
            if cap is not None and taken[number] >= cap:
                continue
            taken[number] += 1
            wanted.setdefault(names[record["sample_data_token"]], []).append((box, number))
        if not wanted:
            raise InputError("has no box of a road user")
    return [
        crops.Job(
            folder / name, np.array([box for box, _ in found]), np.array([n for _, n in found], np.int64)
        )
        for name, found in sorted(wanted.items())
    ]


def _tables(folder: Path, version: str) -> dict[str, list[dict[str, Any]]]:
    from nuimages import NuImages  # here, for it imports much of the devkit

    database = NuImages(version, str(folder), lazy=True, verbose=False)
    tables = {}
    for table in TABLES:
        path = folder / version / f"{table}.json"
        if not path.is_file():
            raise InputError(f"{path} is missing; unpack the nuImages metadata again")
        with reading(path):
            tables[table] = getattr(database, table)
            if not all(isinstance(record, dict) for record in tables[table]):
                raise InputError("is not a list of records")
    return tables


def _class_number(category: str) -> int | None:
    from nuscenes.eval.detection.utils import category_to_detection_name

    name = category_to_detection_name(category)
    return None if name is None else CLASSES.index(name)
