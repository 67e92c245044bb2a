"""``fedlib record``: compute pages in a large profile and keep their verdicts with the sources."""

from __future__ import annotations

from typing import Annotated

import typer


def record(
    pages: Annotated[
        list[str], typer.Argument(help="Pages, for example mpt/fig-5-communication, or a part: mpt.")
    ],
    profile: Annotated[str, typer.Option(help="overnight or paper.")] = "overnight",
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="Set a parameter; may be repeated."),
    ] = None,
) -> None:
    """Execute pages one after the other and record what they find.

    An interrupted command goes on where it stopped: finished runs are stored, and unfinished ones continue from
    their last round.
    """
    import datetime

    from fedlib import paths
    from fedlib.book import execute
    from fedlib.book.layout import Layout
    from fedlib.book.notebook import find
    from fedlib.cli import console
    from fedlib.errors import InputError, choose
    from fedlib.report import evidence, recorded
    from fedlib.runs.store import machine

    choose("profile", profile, ("overnight", "paper"))
    layout = Layout.of_checkout()
    names = [
        page
        for given in pages
        for page in ([p for p in sorted(layout.sources()) if p.split("/")[0] == given] or [given])
    ]
    folder = paths.state_root() / "recorded" / profile
    out = console.console()
    failed = False
    for name in names:
        source = find(name)
        if "profile" not in source.parameters:
            raise InputError(f"page {source.page} has no profile, so there is nothing to record")
        given = source.read_assignments([*(parameter or []), f"profile={profile}"])
        job = execute.job(source, folder / f"{source.page}.ipynb", given, layout.lock)
        with console.listener(out) as listener:
            outcomes = execute.run([job], listener, at_once=1)
        if any(outcome.failure for outcome in outcomes):
            failed = True
            continue
        found = [item for item in evidence.collect(folder) if item.page == source.page]
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        written = recorded.write(found, machine=machine(), date=today)
        console.say(
            out, f"{source.page}: {sum(path.suffix == '.yaml' for path in written)} verdicts recorded"
        )
    if failed:
        raise typer.Exit(1)
