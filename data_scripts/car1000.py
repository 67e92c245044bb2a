"""Car-1000 (Hu et al., 2025): 140,312 pictures of 1,000 car models of 165 makers.

Source: https://github.com/toggle1995/Car-1000 (the authors say there how to get it). Licence: as given with the
copy; pictures from the web, for research. Put the folders of the models below <data folder>/car1000 (FEDLIB_DATA),
below train and test if the copy is split, and beside them the hierarchy:

    <data folder>/car1000/hierarchy.csv      model,body_type,sub_type
                                             brand/model x,sedan,micro sedan
                                             brand/model y,van,
    <data folder>/car1000/brand/model x/*.jpg

    python data_scripts/car1000.py coarse    body types: check the copy and prepare it (minutes, once)
    python data_scripts/car1000.py fine      sub-types of sedans
"""

from pathlib import Path
from typing import Annotated

import typer
from _check import check


def main(
    level: Annotated[str, typer.Argument(help="coarse or fine")],
    size: Annotated[int, typer.Option(help="side of the pictures in pixels: 32, 64, 128 or 224")] = 64,
    cap: Annotated[int, typer.Option(help="most pictures of each class in each split; 0 takes all")] = 0,
    root: Annotated[Path | None, typer.Option(help="data folder; FEDLIB_DATA if not given")] = None,
) -> None:
    """Check a copy of Car-1000 and reduce its pictures."""
    check(f"car1000-{level}", root, False, size=size, cap=cap or None)


if __name__ == "__main__":
    typer.run(main)
