"""What every script of this folder does: look for a data set, fetch it if asked to, check and describe it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from fedlib import data
from fedlib.errors import InputError


def check(name: str, root: Path | None, download: bool, **options: Any) -> None:
    """Print the state and the card of a data set; end with status 1 if it is absent or not in order."""
    try:
        found = data.find(name, root=root, **options)
        if not found.present and not download:
            raise InputError(f"{name} is absent. {found.what_to_do}")
        image_set = data.load(name, root=root, download=download, **options)
    except InputError as error:
        typer.echo(error, err=True)
        raise typer.Exit(1) from error
    card = image_set.card
    height, width, channels = image_set.shape
    typer.echo(f"{card.title}: in order")
    typer.echo(f"  files     {data.find(name, root=root, **options).where}")
    typer.echo(f"  checked   {'published checksum holds' if card.verified else 'contents only, no checksum'}")
    typer.echo(f"  images    {height} x {width}, {channels} channel{'s' if channels > 1 else ''}")
    for key, split in image_set.splits.items():
        typer.echo(f"  {key:9s} {len(split):,}")
    typer.echo(f"  classes   {', '.join(image_set.class_names)}")
    typer.echo(f"  source    {card.source}")
    typer.echo(f"  licence   {card.licence}")
    typer.echo(f"  cite      {card.citation}")
    typer.echo(f"  SHA-256   {card.checksum}")
    for note in card.notes:
        typer.echo(f"  note      {note}")
