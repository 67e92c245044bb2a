"""``fedlib runs``: look at the stored runs and remove them."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedlib.runs import Run

app = typer.Typer()

Key = Annotated[str, typer.Argument(help="Key of a run, or its first digits.")]

_WIDTH = 80  # of a setting; index lists are longer


@app.callback(invoke_without_command=True)
def default(context: typer.Context) -> None:
    """List, show, explain and remove stored runs; without a command: list them."""
    if context.invoked_subcommand is None:
        list_runs()


@app.command("list")
def list_runs() -> None:
    """List the stored runs."""
    from fedlib.cli import console
    from fedlib.runs import Store

    store, out = Store(), console.console()
    runs = store.list()
    settings = ("dataset", "model", "rounds", "seed")
    sizes = [run.size / 2**20 for run in runs]
    rows = [
        (
            run.key,
            run.name,
            *(run.config.get(name, "") for name in settings),
            f"{run.seconds:.1f}",
            f"{size:.1f}",
        )
        for run, size in zip(runs, sizes, strict=True)
    ]
    if rows:
        out.print(console.table(("key", "experiment", *settings, "seconds", "MiB"), rows))
    unfinished = sum(1 for _ in store.unfinished())
    console.say(out, f"{len(runs)} runs, {sum(sizes):,.0f} MiB, and {unfinished} unfinished in {store.root}")


@app.command()
def show(key: Key) -> None:
    """Show one run: settings, environment and the head of its metrics. Its files are checked."""
    from fedlib.cli import console

    run, out = _find(key), console.console()
    console.say(out, f"{run.name} {run.key}: {run.seconds:.1f} s, in {run.path}")
    for title, values in (("setting", run.config), ("environment", run.environment)):
        rows = [(name, textwrap.shorten(str(value), _WIDTH)) for name, value in values.items()]
        out.print(console.table((title, "value"), rows))
    metrics = run.metrics
    console.say(out, f"metrics: {len(metrics)} rows, the first of them:")
    console.say(out, metrics.head(10).to_string(index=False))


@app.command()
def why(key: Key) -> None:
    """Say whether a stored run would be used today or computed again, and why."""
    from fedlib.cli import console
    from fedlib.runs import Store

    run = _find(key)
    console.say(console.console(), f"{run.name} {run.key}: {Store().why(Store().spec_of(run))}")


@app.command()
def remove(keys: Annotated[list[str], typer.Argument(help="Keys of runs, or their first digits.")]) -> None:
    """Remove stored runs; they are computed again when something needs them."""
    from fedlib.cli import console
    from fedlib.runs import Store

    store, out = Store(), console.console()
    for key in keys:
        console.say(out, f"removed {store.remove(key)}")


@app.command()
def prune(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
) -> None:
    """Remove the runs that today's code cannot use: the code or the versions of torch and numpy changed since."""
    from fedlib.cli import console
    from fedlib.runs import Store

    store, out = Store(), console.console()
    runs = store.outdated()
    size = sum(run.size for run in runs) / 2**20
    for run in runs:
        console.say(out, f"{'would remove' if dry_run else 'removed'} {run.name} {run.key}")
        if not dry_run:
            store.remove(run.key)
    console.say(out, f"{len(runs)} runs, {size:,.0f} MiB")


def _find(key: str) -> Run:
    from fedlib.runs import DamagedRun, Store

    try:
        return Store().show(key)
    except DamagedRun as damage:
        typer.echo(f"run {key} is {damage}; it will be computed again when something needs it", err=True)
        raise typer.Exit(1) from None
