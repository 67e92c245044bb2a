"""``fedlib run``: execute one notebook with other parameters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer


def run(
    notebook: Annotated[
        str, typer.Argument(help="Page, for example mpt/preliminary-drift-study, or a path.")
    ],
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="Set a parameter; may be repeated."),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="smoke, quick, overnight or paper; short for -p profile=...")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where the executed notebook goes.", metavar="FILE")
    ] = None,
) -> None:
    """Execute one notebook and say where the executed copy is.

    The book is left as it is. Runs that are stored already are not computed again.
    """
    from fedlib import paths
    from fedlib.book import execute
    from fedlib.book.notebook import find
    from fedlib.cli import console
    from fedlib.errors import InputError

    source = find(notebook)
    given = source.read_assignments([*(parameter or []), *([f"profile={profile}"] if profile else [])])
    target = (output or paths.state_root() / "executed" / f"{source.page}.ipynb").resolve()
    if target == source.path.resolve():
        raise InputError(f"output is {str(output)!r}, the source notebook itself; give another file")
    checkout = paths.repo_root()
    lock = (checkout or source.path.parent) / "requirements.lock"
    job = replace(execute.job(source, target, given, lock), reason="asked for")
    out = console.console()
    with console.listener(out) as listener:
        (outcome,) = execute.run([job], listener)
    if outcome.failure:
        raise typer.Exit(1)
    console.say(out, f"executed copy: {target}")
