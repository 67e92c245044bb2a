"""``isic``: dermoscopic pictures of skin lesions of eight diagnoses (ISIC Challenge 2019).

The copy is the folder ``isic`` in the data folder (or the data folder itself), as the challenge gives it:

    ISIC_2019_Training_GroundTruth.csv       image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK      one column is 1
    ISIC_2019_Training_Metadata.csv          image,...,lesion_id,...                      optional
    ISIC_2019_Training_Input/<image>.jpg

The split is ours, by lesion where the metadata name it. Pictures are reduced once and kept in the state folder
until the copy changes.
"""

from __future__ import annotations

from pathlib import Path

from fedlib.data import labelled
from fedlib.data.files import Found, reading, table
from fedlib.data.imageset import Card, ImageSet
from fedlib.errors import InputError

TABLE, METADATA = "ISIC_2019_Training_GroundTruth.csv", "ISIC_2019_Training_Metadata.csv"
FOLDER = "ISIC_2019_Training_Input"
SUFFIXES = (".jpg", ".jpeg", ".png")
COLUMNS = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
CLASSES = (
    "melanoma", "melanocytic nevus", "basal cell carcinoma", "actinic keratosis", "benign keratosis",
    "dermatofibroma", "vascular lesion", "squamous cell carcinoma",
)  # fmt: skip
CARD = Card(
    name="isic",
    title="ISIC Challenge 2019",
    kind="real",
    source="https://challenge.isic-archive.com/data/#2019",
    licence="CC BY-NC 4.0",
    citation="M. Combalia et al. BCN20000: dermoscopic lesions in the wild. arXiv:1908.02288, 2019; P. Tschandl "
    "et al. The HAM10000 dataset. Scientific Data 5, 2018; N. Codella et al. arXiv:1710.05006, 2017.",
    notes=("Whole pictures, resized in a square; the shorter side is filled by repeating the edge.",),
)


def load(*, root: Path, download: bool, size: int = 224, cap: int | None = None) -> ImageSet:
    """Load a user's copy; the first time the pictures are reduced. ``download`` has no effect.

    Args:
        root: folder that holds the copy, or whose subfolder ``isic`` does.
        download: without effect.
        size: side of the pictures in pixels: 32, 64, 128 or 224.
        cap: most pictures of each class in each split; None takes all, at 224 pixels about 11 GB of memory.

    Raises:
        InputError: no copy; a table that is damaged, lacks a column or contradicts itself; pictures absent; an
            option out of range.
    """
    found = find(root=root, size=size, cap=cap)
    if found.where is None:
        raise InputError(f"isic is not in {root}. {found.what_to_do}")
    folder, path = found.where, found.where / TABLE
    lesions, note = _lesions(folder / METADATA)
    listed: dict[str, labelled.Listed] = {}
    rows = table(path, ("image", *COLUMNS))
    with reading(path):
        for row in rows:
            name = row["image"]
            marked = [k for k, column in enumerate(COLUMNS) if _is_one(row[column], name, column)]
            if len(marked) != 1:
                raise InputError(
                    f"image {name!r} has {len(marked)} diagnoses; allowed: one of {', '.join(COLUMNS)}"
                )
            if name in listed:
                raise InputError(f"image {name!r} is listed twice; allowed: once")
            picture = labelled.picture_of(folder / FOLDER, name, SUFFIXES)
            listed[name] = labelled.Listed(picture, marked[0], lesions.get(name) or name)
    return labelled.grouped(CARD, list(listed.values()), CLASSES, size, cap, (note,))


def find(*, root: Path, size: int = 224, cap: int | None = None) -> Found:
    """Look for the table; the options make no difference to it.

    Raises:
        InputError: an option out of range.
    """
    labelled.check_options(size, cap)
    for folder in (root / "isic", root):
        if (folder / TABLE).is_file():
            return Found("isic", present=True, where=folder, what_to_do="")
    what = (
        f"Get the training part of the ISIC Challenge 2019 ({CARD.source}), put {TABLE}, {METADATA} and the "
        f"folder {FOLDER} into {root / 'isic'}, then run data_scripts/medical_pictures.py isic"
    )
    return Found("isic", present=False, where=None, what_to_do=what)


def _lesions(path: Path) -> tuple[dict[str, str], str]:
    """Return the lesion of each picture (empty if not known), and the sentence for the card."""
    if not path.is_file():
        return (
            {},
            "No metadata in this copy: the split is by picture, and one lesion may be in several splits.",
        )
    rows = table(path, ("image", "lesion_id"))
    note = "Split by lesion: of ten lesions about seven train, one validates and two test."
    return {row["image"]: row["lesion_id"] for row in rows}, note


def _is_one(text: str, name: str, column: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value not in (0.0, 1.0):
        raise InputError(f"{column} of image {name!r} is {text!r}; allowed: 0, 1")
    return value == 1.0
