"""``fedlib book``: execute what is stale and build the book."""

from __future__ import annotations

import contextlib
import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedlib.book.layout import Layout


def book(
    profile: Annotated[
        str | None, typer.Option(help="smoke, quick, overnight or paper, for all notebooks.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Execute only these pages, for example 'mpt/*'.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Notebooks at once; default: the usable cores.")
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(min=1, metavar="SECONDS", help="Limit for one notebook; default: by profile."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would run, and why.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Execute and build also what is up to date.")
    ] = False,
) -> None:
    """Execute the notebooks that changed, build the book and say where it is."""
    from fedlib.book import build, execute
    from fedlib.book.layout import Layout
    from fedlib.cli import console
    from fedlib.errors import choose
    from fedlib.experiments.settings import PROFILES

    out = console.console()
    layout = Layout.of_checkout()
    given = {"profile": choose("profile", profile, PROFILES)} if profile else {}
    notebooks, broken = execute.readable(_chosen(layout, only))
    plan = execute.plan(notebooks, layout, given, force=force)
    stale = [job for job in plan if job.reason]
    if dry_run:
        for job in plan:
            console.say(out, f"{job.page}: {f'would run ({job.reason})' if job.reason else 'up to date'}")
        for outcome in broken:
            console.say(out, f"{outcome.page}: cannot run ({outcome.failure})")
        return
    if len(stale) < len(plan):
        console.say(out, f"{len(plan) - len(stale)} of {len(plan)} notebooks are up to date")
    if only is None:
        for page in execute.remove_orphans(layout):
            console.say(out, f"{page}: executed copy removed, its notebook is gone")
    with console.listener(out) as listener:
        outcomes = broken + execute.run(stale, listener, at_once=jobs, time_limit=time_limit)
    failed = [outcome for outcome in outcomes if outcome.failure]
    if failed:
        console.say(out, f"book not built: {len(failed)} of {len(outcomes)} notebooks failed")
        for outcome in failed:
            console.say(out, console.ending(outcome))
        raise typer.Exit(1)
    try:
        with out.status("building the book") if out.is_terminal else contextlib.nullcontext():
            built = build.build(layout, force=force)
    except build.BuildError as error:
        console.say(out, f"book not built: {error}")
        raise typer.Exit(1) from None
    console.say(out, "book built" if built.fresh else "book is up to date, nothing to build")
    console.say(out, f"open {built.index.as_uri()}")


def _chosen(layout: Layout, only: str | None) -> dict[str, Path]:
    from fedlib.errors import InputError

    sources = layout.sources()
    if not sources:
        raise InputError(f"no notebooks in {layout.notebooks}")
    pages = {page: path for page, path in sources.items() if fnmatch.fnmatchcase(page, only or "*")}
    if not pages:
        raise InputError(f"--only is {only!r}, which matches no page; pages: {', '.join(sources)}")
    return pages
