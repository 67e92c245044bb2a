"""``rsna``: chest radiographs with and without signs of pneumonia (RSNA Pneumonia Detection Challenge, 2018).

The copy is the folder ``rsna`` in the data folder (or the data folder itself), as the challenge gives it:

    stage_2_train_labels.csv        patientId,x,y,width,height,Target    one line for each box, or one without
    stage_2_train_images/<patientId>.dcm                                 or .png, .jpg

The challenge's test pictures have no public labels, so the split is ours. Pictures are reduced once and kept in
the state folder until the copy changes.
"""

from __future__ import annotations

from pathlib import Path

from fedlib.data import dicom, labelled
from fedlib.data.files import Found, reading, table
from fedlib.data.imageset import Card, ImageSet
from fedlib.errors import InputError

TABLE, FOLDER = "stage_2_train_labels.csv", "stage_2_train_images"
SUFFIXES = (".dcm", ".png", ".jpg")
CLASSES = ("no pneumonia", "pneumonia")
CARD = Card(
    name="rsna",
    title="RSNA Pneumonia Detection Challenge",
    kind="real",
    source="https://www.rsna.org/rsnai/ai-image-challenge/rsna-pneumonia-detection-challenge-2018",
    licence="terms of the challenge: research and education, not for resale",
    citation="G. Shih et al. Augmenting the National Institutes of Health chest radiograph dataset with expert "
    "annotations of possible pneumonia. Radiology: Artificial Intelligence 1(1), 2019.",
    notes=(
        "Grey. Class: the column Target; a patient with any box has it.",
        "No public test labels: of ten patients about seven train, one validates and two test.",
    ),
)


def load(*, root: Path, download: bool, size: int = 224, cap: int | None = None) -> ImageSet:
    """Load a user's copy; the first time the pictures are reduced. ``download`` has no effect.

    Args:
        root: folder that holds the copy, or whose subfolder ``rsna`` does.
        download: without effect; the challenge wants a registration.
        size: side of the pictures in pixels: 32, 64, 128 or 224.
        cap: most pictures of each class in each split; None takes all, at 224 pixels about 4 GB of memory.

    Raises:
        InputError: no copy; a table that is damaged, lacks a column or contradicts itself; pictures absent; DICOM
            files without the package pydicom; an option out of range.
    """
    found = find(root=root, size=size, cap=cap)
    if found.where is None:
        raise InputError(f"rsna is not in {root}. {found.what_to_do}")
    folder, path = found.where, found.where / TABLE
    label_of: dict[str, int] = {}
    rows = table(path, ("patientId", "Target"))
    with reading(path):
        for row in rows:
            patient, target = row["patientId"], row["Target"]
            if not patient or target not in ("0", "1"):
                raise InputError(f"Target of patient {patient!r} is {target!r}; allowed: 0, 1")
            if label_of.setdefault(patient, int(target)) != int(target):
                raise InputError(f"patient {patient!r} is listed with Target 0 and 1; allowed: one of them")
    listed = [
        labelled.Listed(labelled.picture_of(folder / FOLDER, patient, SUFFIXES), label, patient)
        for patient, label in label_of.items()
    ]
    if any(picture.path.suffix == ".dcm" and picture.path.is_file() for picture in listed):
        dicom.require()
    return labelled.grouped(CARD, listed, CLASSES, size, cap, grey=True)


def find(*, root: Path, size: int = 224, cap: int | None = None) -> Found:
    """Look for the table; the options make no difference to it.

    Raises:
        InputError: an option out of range.
    """
    labelled.check_options(size, cap)
    for folder in (root / "rsna", root):
        if (folder / TABLE).is_file():
            return Found("rsna", present=True, where=folder, what_to_do="")
    what = (
        f"Get stage 2 of the RSNA Pneumonia Detection Challenge ({CARD.source}), put {TABLE} and the folder "
        f"{FOLDER} into {root / 'rsna'}, then run data_scripts/medical_pictures.py rsna"
    )
    return Found("rsna", present=False, where=None, what_to_do=what)
