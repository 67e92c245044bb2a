"""``diabetic``: fundus photographs graded for diabetic retinopathy (EyePACS, Kaggle challenge of 2015).

The copy is the folder ``diabetic`` in the data folder (or the data folder itself), as the challenge gives it:

    trainLabels.csv             image,level        10_left,0
    train/10_left.jpeg                             or .jpg, .png

Only the training part came with labels, so the split is ours; both eyes of a patient are in one split. Pictures
are reduced once and kept in the state folder until the copy changes.
"""

from __future__ import annotations

from pathlib import Path

from fedlib.data import labelled
from fedlib.data.files import Found, reading, table
from fedlib.data.imageset import Card, ImageSet
from fedlib.errors import InputError

TABLE, FOLDER = "trainLabels.csv", "train"
SUFFIXES = (".jpeg", ".jpg", ".png")
CLASSES = ("no retinopathy", "mild", "moderate", "severe", "proliferative")
CARD = Card(
    name="diabetic",
    title="Diabetic Retinopathy Detection (EyePACS)",
    kind="real",
    source="https://www.kaggle.com/c/diabetic-retinopathy-detection",
    licence="rules of the challenge",
    citation="E. Dugas, Jared, Jorge, W. Cukierski. Diabetic Retinopathy Detection. Kaggle, 2015.",
    notes=(
        "Whole photographs, resized in a square; the shorter side is filled by repeating the edge.",
        "Split by patient, both eyes together: of ten patients about seven train, one validates and two test.",
    ),
)


def load(*, root: Path, download: bool, size: int = 224, cap: int | None = None) -> ImageSet:
    """Load a user's copy; the first time the pictures are reduced. ``download`` has no effect.

    Args:
        root: folder that holds the copy, or whose subfolder ``diabetic`` does.
        download: without effect; the challenge wants a registration.
        size: side of the pictures in pixels: 32, 64, 128 or 224.
        cap: most pictures of each class in each split; None takes all, at 224 pixels about 16 GB of memory.

    Raises:
        InputError: no copy; a table that is damaged, lacks a column or contradicts itself; pictures absent; an
            option out of range.
    """
    found = find(root=root, size=size, cap=cap)
    if found.where is None:
        raise InputError(f"diabetic is not in {root}. {found.what_to_do}")
    folder, path = found.where, found.where / TABLE
    listed: dict[str, labelled.Listed] = {}
    rows = table(path, ("image", "level"))
    with reading(path):
        for row in rows:
            name, level = row["image"], row["level"]
            patient, _, side = name.rpartition("_")
            if not patient or side not in ("left", "right"):
                raise InputError(f"image is {name!r}; allowed: <patient>_left, <patient>_right")
            if level not in ("0", "1", "2", "3", "4"):
                raise InputError(f"level of image {name!r} is {level!r}; allowed: 0 to 4")
            if name in listed:
                raise InputError(f"image {name!r} is listed twice; allowed: once")
            picture = labelled.picture_of(folder / FOLDER, name, SUFFIXES)
            listed[name] = labelled.Listed(picture, int(level), patient)
    return labelled.grouped(CARD, list(listed.values()), CLASSES, size, cap)


def find(*, root: Path, size: int = 224, cap: int | None = None) -> Found:
    """Look for the table; the options make no difference to it.

    Raises:
        InputError: an option out of range.
    """
    labelled.check_options(size, cap)
    for folder in (root / "diabetic", root):
        if (folder / TABLE).is_file():
            return Found("diabetic", present=True, where=folder, what_to_do="")
    what = (
        f"Get the training part of {CARD.source}, put {TABLE} and the folder {FOLDER} into {root / 'diabetic'}, "
        "then run data_scripts/medical_pictures.py diabetic"
    )
    return Found("diabetic", present=False, where=None, what_to_do=what)
