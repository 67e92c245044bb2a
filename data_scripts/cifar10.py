"""CIFAR-10 (Krizhevsky, 2009): 60,000 RGB pictures in ten classes, 32 x 32 pixels, 170 MB.

Source: https://www.cs.toronto.edu/~kriz/cifar.html. Licence: none stated, free for research by custom.

    python data_scripts/cifar10.py               check the copy in the data folder (FEDLIB_DATA)
    python data_scripts/cifar10.py --download    fetch it there first
"""

from pathlib import Path
from typing import Annotated

import typer
from _check import check


def main(
    root: Annotated[Path | None, typer.Option(help="data folder; FEDLIB_DATA if not given")] = None,
    download: Annotated[bool, typer.Option("--download", help="fetch it if it is absent")] = False,
) -> None:
    """Check a copy of CIFAR-10, or fetch one."""
    check("cifar10", root, download)


if __name__ == "__main__":
    typer.run(main)
