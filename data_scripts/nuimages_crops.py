"""nuImages (Motional, 2020): 93,000 annotated pictures from cars, of which crops of road users are cut once.

Source: https://www.nuscenes.org/nuimages (registration; samples about 16 GB). Licence: CC BY-NC-SA 4.0 with the
nuScenes terms of use. Unpack both in <data folder>/nuimages (FEDLIB_DATA):

    <data folder>/nuimages/v1.0-train/*.json, v1.0-val/*.json, samples/CAM_.../*.jpg

    python data_scripts/nuimages_crops.py                        check the copy and prepare it (minutes, once)
    python data_scripts/nuimages_crops.py --size 32 --cap 2000   other crops

The file is not called nuimages.py, because it would then hide the package of that name from itself.
"""

from pathlib import Path
from typing import Annotated

import typer
from _check import check


def main(
    size: Annotated[int, typer.Option(help="side of the crops in pixels: 32, 64, 128 or 224")] = 64,
    cap: Annotated[int, typer.Option(help="most crops of each class in each split; 0 takes all")] = 5000,
    root: Annotated[Path | None, typer.Option(help="data folder; FEDLIB_DATA if not given")] = None,
) -> None:
    """Check a copy of nuImages and cut its crops."""
    check("nuimages", root, False, size=size, cap=cap or None)


if __name__ == "__main__":
    typer.run(main)
