"""Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): 70,000 grey pictures in ten classes, 28 x 28 pixels, 31 MB.

Source: https://github.com/zalandoresearch/fashion-mnist. Licence: MIT.

    python data_scripts/fashion_mnist.py               check the copy in the data folder (FEDLIB_DATA)
    python data_scripts/fashion_mnist.py --download    fetch it there first
"""

from pathlib import Path
from typing import Annotated

import typer
from _check import check


def main(
    root: Annotated[Path | None, typer.Option(help="data folder; FEDLIB_DATA if not given")] = None,
    download: Annotated[bool, typer.Option("--download", help="fetch it if it is absent")] = False,
) -> None:
    """Check a copy of Fashion-MNIST, or fetch one."""
    check("fashion-mnist", root, download)


if __name__ == "__main__":
    typer.run(main)
