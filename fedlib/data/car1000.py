"""``car1000-coarse`` and ``car1000-fine``: pictures of cars from a user's copy of Car-1000 (Hu et al., 2025).

The copy is the folder ``car1000`` in the data folder (or the data folder itself), with

* one folder of pictures for each car model, below ``train`` and ``test`` if there is an official split; else
  anywhere below the folder, and then every 4th picture of a model, by name, is a test picture;
* the hierarchy: ``hierarchy.csv`` with the columns ``model``, ``body_type``, ``sub_type``, or ``hierarchy.json``
  with ``{model: {"body_type": ..., "sub_type": ...}}``. A model is named by its folder (with the folders above it,
  separated by ``/``, if they are nested). ``sub_type`` may be empty where it is not known.

The coarse task has the body types as classes (rare: van); the fine task the sub-types of the models whose body
type is ``sedan`` (rare: micro sedan). Pictures are reduced once and kept in the state
folder until the copy changes.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedlib.data import crops, labelled
from fedlib.data.files import Found, reading, table
from fedlib.data.imageset import Card, ImageSet
from fedlib.errors import InputError, choose

RARE = {"coarse": "van", "fine": "micro sedan"}
HIERARCHY = ("hierarchy.csv", "hierarchy.json")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
COLUMNS = ("model", "body_type", "sub_type")
TEST_EVERY = 4


def card(level: str) -> Card:
    """Return the card of the task ``coarse`` or ``fine``."""
    what = "body types" if level == "coarse" else "sub-types of sedans"
    return Card(
        name=f"car1000-{level}",
        title=f"Car-1000, {what}",
        kind="real",
        source="Car-1000, https://github.com/toggle1995/Car-1000",
        licence="as given with the copy; pictures from the web, for research",
        citation="Y. Hu, S. Li, J. Yan, W. Shao, X. Luo. Car-1000: a new large scale fine-grained visual "
        "categorization dataset. arXiv:2503.12385, 2025.",
        notes=(
            f"Classes: {what}, from a hierarchy file that the user supplies; the rare class is {RARE[level]}.",
            "Whole pictures, resized in a square; the shorter side is filled by repeating the edge.",
        ),
    )


def load(level: str, root: Path, size: int, cap: int | None) -> ImageSet:
    """Load a task; the first time the pictures are reduced.

    Args:
        level: ``coarse`` or ``fine``.
        root: folder that holds the copy, or whose subfolder ``car1000`` does.
        size: side of the pictures in pixels: 32, 64, 128 or 224.
        cap: most pictures of each class in each split, taken evenly over the names; None takes all.

    Raises:
        InputError: no copy or hierarchy; a hierarchy that is damaged, lacks a column or a model (the message names
            the file); no readable picture; an option out of range. A single bad picture is skipped and counted.
    """
    found = find(level, root, size, cap)
    described = card(level)
    if found.where is None:
        raise InputError(f"{described.name} is not in {root}. {found.what_to_do}")
    folder = found.where
    classes, jobs, own_split = _plan(folder, level, cap)
    notes = []
    if own_split:
        notes.append(
            f"No official split in this copy: every {TEST_EVERY}th picture of a model is a test picture."
        )
    if cap is not None:
        notes.append(f"At most {cap:,} pictures of each class in each split.")
    return labelled.image_set(described, jobs, classes, size, notes)


def find(level: str, root: Path, size: int, cap: int | None) -> Found:
    """Look for the hierarchy file; the options make no difference to it.

    Raises:
        InputError: an option out of range.
    """
    choose("level", level, RARE)
    labelled.check_options(size, cap)
    name = f"car1000-{level}"
    for folder in (root / "car1000", root):
        if any((folder / file).is_file() for file in HIERARCHY):
            return Found(name, present=True, where=folder, what_to_do="")
    what = (
        f"Get Car-1000 from its authors (https://github.com/toggle1995/Car-1000), put its model folders below "
        f"{root / 'car1000'}, and beside them {HIERARCHY[0]} with the columns {', '.join(COLUMNS)}; "
        "then run data_scripts/car1000.py"
    )
    return Found(name, present=False, where=None, what_to_do=what)


def _plan(folder: Path, level: str, cap: int | None) -> tuple[list[str], dict[str, list[crops.Job]], bool]:
    """Return the class names, the pictures of each split, and whether the split is ours."""
    classes, class_of = _classes(folder, level)
    official = all((folder / key).is_dir() for key in ("train", "test"))
    pictures: dict[str, list[tuple[Path, int]]] = {"train": [], "test": []}
    if official:
        if (folder / "val").is_dir():
            pictures["val"] = []
        for key, chosen in pictures.items():
            for model, paths in _models(folder / key).items():
                number = _number(folder, model, class_of)
                chosen += [(path, number) for path in paths if number is not None]
    else:
        for model, paths in _models(folder).items():
            if (number := _number(folder, model, class_of)) is None:
                continue
            for k, path in enumerate(paths, start=1):
                pictures["train" if k % TEST_EVERY else "test"].append((path, number))
    jobs: dict[str, list[crops.Job]] = {}
    for key, chosen in pictures.items():
        if not chosen:
            raise InputError(f"{folder}: no picture for the {key} split of the {level} task")
        labels = np.array([number for _, number in chosen], dtype=np.int64)
        jobs[key] = [
            crops.Job(chosen[k][0], None, labels[k : k + 1])
            for k in labelled.capped(labels, len(classes), cap).tolist()
        ]
    return classes, jobs, not official


def _classes(folder: Path, level: str) -> tuple[list[str], dict[str, int | None]]:
    """Return the class names, and each model's class; None where it is not in the task."""
    path = next(folder / file for file in HIERARCHY if (folder / file).is_file())
    with reading(path):
        if path.suffix == ".csv":
            rows = [_row(*(row[column] for column in COLUMNS)) for row in table(path, COLUMNS)]
        else:
            rows = _json(path)
        named: dict[str, str] = {}
        for model, body_type, sub_type in rows:
            if level == "coarse":
                wanted = body_type
                if not wanted:
                    raise InputError(f"model {model!r} has no body_type")
            else:
                wanted = sub_type if body_type.casefold() == "sedan" else ""
            if named.setdefault(model, wanted) != wanted:
                raise InputError(f"model {model!r} is listed twice, as {named[model]!r} and {wanted!r}")
        classes = sorted({name for name in named.values() if name})
        if len(classes) < 2:
            raise InputError(f"the {level} task has classes {classes}; allowed: two or more")
    return classes, {model: classes.index(name) if name else None for model, name in named.items()}


def _json(path: Path) -> list[tuple[str, str, str]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or not all(isinstance(value, dict) for value in content.values()):
        raise InputError('allowed: {model: {"body_type": ..., "sub_type": ...}}')
    return [_row(model, row.get("body_type"), row.get("sub_type")) for model, row in content.items()]


def _row(model: str | None, body_type: str | None, sub_type: str | None) -> tuple[str, str, str]:
    if not model:
        raise InputError("has a row without a model")
    return model.strip().strip("/"), (body_type or "").strip(), (sub_type or "").strip()


def _models(folder: Path) -> dict[str, list[Path]]:
    """Return the pictures, sorted by name, of each folder that holds some; named by its path below ``folder``."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in SUFFIXES and path.parent != folder:
            found.setdefault(path.parent.relative_to(folder).as_posix(), []).append(path)
    return found


def _number(folder: Path, model: str, class_of: dict[str, int | None]) -> int | None:
    if model not in class_of:
        hierarchy = next(file for file in HIERARCHY if (folder / file).is_file())
        raise InputError(f"{folder / hierarchy}: has no row for the model {model!r}, whose folder is there")
    return class_of[model]
