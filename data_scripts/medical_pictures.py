"""Medical sets of larger pictures: rsna, diabetic, isic. Reduced once, to 224 pixels unless told otherwise.

rsna (chest radiographs): https://www.rsna.org/rsnai/ai-image-challenge/rsna-pneumonia-detection-challenge-2018
    <data folder>/rsna/stage_2_train_labels.csv, stage_2_train_images/*.dcm    (needs pydicom: fedlib[dicom])
diabetic (fundus photographs): https://www.kaggle.com/c/diabetic-retinopathy-detection
    <data folder>/diabetic/trainLabels.csv, train/*.jpeg
isic (skin lesions): https://challenge.isic-archive.com/data/#2019
    <data folder>/isic/ISIC_2019_Training_GroundTruth.csv, ISIC_2019_Training_Metadata.csv,
    ISIC_2019_Training_Input/*.jpg

All three want a registration or an agreement, so nothing is fetched here.

    python data_scripts/medical_pictures.py rsna               check the copy and prepare it (minutes, once)
    python data_scripts/medical_pictures.py isic --cap 200     a small part of it
"""

from pathlib import Path
from typing import Annotated

import typer
from _check import check

from fedlib.errors import InputError, choose


def main(
    name: Annotated[str, typer.Argument(help="rsna, diabetic or isic")],
    size: Annotated[int, typer.Option(help="side of the pictures in pixels: 32, 64, 128 or 224")] = 224,
    cap: Annotated[int, typer.Option(help="most pictures of each class in each split; 0 takes all")] = 0,
    root: Annotated[Path | None, typer.Option(help="data folder; FEDLIB_DATA if not given")] = None,
) -> None:
    """Check a copy of a medical set and reduce its pictures."""
    try:
        choose("data set", name, ("rsna", "diabetic", "isic"))
    except InputError as error:
        typer.echo(error, err=True)
        raise typer.Exit(1) from error
    check(name, root, False, size=size, cap=cap or None)


if __name__ == "__main__":
    typer.run(main)
