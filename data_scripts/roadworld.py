"""Roadworld: generated pictures of road users, the surrogate for nuImages and Car-1000.

Source: fedlib.data.roadworld in this repository. Licence: that of the library. Nothing is downloaded.

    python data_scripts/roadworld.py objects                     make the pictures once (half a minute)
    python data_scripts/roadworld.py coarse --sheet sheet.png    and save some of each class to look at
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from _check import check
from PIL import Image

from fedlib import data

COLUMNS = 16


def main(
    task: Annotated[str, typer.Argument(help="objects, coarse or fine")],
    size: Annotated[int, typer.Option(help="side of the pictures in pixels: 32 or 64")] = 32,
    train_images: Annotated[int, typer.Option(help="number of training pictures")] = 4000,
    seed: Annotated[int, typer.Option(help="of the generator")] = 0,
    sheet: Annotated[
        Path | None, typer.Option(help="save a contact sheet (PNG), a row for each class")
    ] = None,
) -> None:
    """Make a task's pictures, once, and describe them."""
    options = {"size": size, "train_images": train_images, "seed": seed}
    check(f"roadworld:{task}", None, False, **options)
    if sheet is not None:
        made = data.load(f"roadworld:{task}", **options)
        rows = np.zeros((made.num_classes, COLUMNS, *made.shape), dtype=np.uint8)
        for number in range(made.num_classes):
            some = made.train.images[made.train.labels == number][:COLUMNS]
            rows[number, : len(some)] = some
        picture = rows.transpose(0, 2, 1, 3, 4).reshape(made.num_classes * size, COLUMNS * size, 3)
        Image.fromarray(picture).save(sheet)
        typer.echo(f"  sheet     {sheet}: {', '.join(made.class_names)}")


if __name__ == "__main__":
    typer.run(main)
