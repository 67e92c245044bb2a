"""The 2D sets of MedMNIST v2 (Yang et al., 2023), at 28, 64, 128 or 224 pixels.

Source: https://medmnist.com (files on Zenodo). Licence: CC BY 4.0, DermaMNIST CC BY-NC 4.0.

    python data_scripts/medmnist_sets.py bloodmnist                          check the copy in the data folder
    python data_scripts/medmnist_sets.py bloodmnist --size 224 --download    fetch it there first

The file is not called medmnist.py, because it would then hide the package of that name from itself.
"""

from pathlib import Path
from typing import Annotated

import typer
from _check import check


def main(
    flag: Annotated[str, typer.Argument(help="bloodmnist, dermamnist, octmnist, pathmnist, ...")],
    size: Annotated[int, typer.Option(help="side of the images in pixels: 28, 64, 128 or 224")] = 28,
    root: Annotated[Path | None, typer.Option(help="data folder; FEDLIB_DATA if not given")] = None,
    download: Annotated[bool, typer.Option("--download", help="fetch it if it is absent")] = False,
) -> None:
    """Check a copy of a MedMNIST set, or fetch one."""
    check(f"medmnist:{flag}", root, download, size=size)


if __name__ == "__main__":
    typer.run(main)
