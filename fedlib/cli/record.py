"""``fedlib record``: compute pages in a large profile and keep their verdicts with the sources."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedlib.book.layout import Layout
    from fedlib.book.notebook import Notebook


def record(
    pages: Annotated[
        list[str], typer.Argument(help="Pages, for example mpt/fig-5-communication, or a part: mpt.")
    ],
    profile: Annotated[str, typer.Option(help="overnight or paper.")] = "overnight",
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="Set a parameter; may be repeated."),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where the records go; default: book/recorded of the checkout."),
    ] = None,
) -> None:
    """Execute pages one after the other and record what they find.

    An interrupted command goes on where it stopped: finished runs are stored, and unfinished ones continue after
    their last round or client, where they have any.
    """
    import datetime

    from fedlib import paths
    from fedlib.book import execute, key
    from fedlib.book.layout import Layout
    from fedlib.cli import console
    from fedlib.errors import choose
    from fedlib.report import evidence, recorded
    from fedlib.runs.store import machine

    choose("profile", profile, ("overnight", "paper"))
    layout = Layout.of_checkout()
    folder = paths.state_root() / "recorded" / profile
    jobs = []
    for source in _sources(layout, pages):
        given = source.read_assignments([*(parameter or []), f"profile={profile}"])
        jobs.append(execute.job(source, folder / f"{source.page}.ipynb", given, layout.lock))
    out = console.console()
    failed = False
    for job in jobs:  # one after the other, so that what is finished is recorded at once
        with console.listener(out) as listener:
            outcomes = execute.run([job], listener, at_once=1)
        manifest = key.manifest(job.target)
        if any(outcome.failure for outcome in outcomes) or manifest is None:
            failed = True
            continue
        written = recorded.write(
            evidence.of_page(job.target, job.page),
            into or layout.recorded,
            parameters=manifest.parameters,
            machine=machine(),
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        )
        claims = [path.stem for path in written if path.suffix == ".yaml"]
        console.say(out, f"{job.page}: recorded {', '.join(claims) or 'nothing, for it judges no claim'}")
    if failed:
        raise typer.Exit(1)


def _sources(layout: Layout, pages: list[str]) -> list[Notebook]:
    """Return the notebooks that are named, or lie in a named part and have a profile; each once."""
    from fedlib.book.notebook import find
    from fedlib.errors import InputError

    found: dict[str, Notebook] = {}
    for name in pages:
        part = [page for page in layout.sources() if page.split("/")[0] == name]
        for page in part or [name]:
            source = find(page, layout)
            if "profile" in source.parameters:
                found[source.page] = source
            elif not part:
                raise InputError(f"page {source.page} has no profile, so there is nothing to record")
    return list(found.values())
