"""Output of the commands: live progress on a terminal, one line per milestone elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from fedlib.book.execute import Job, Listener, Outcome

_LOG_WIDTH = 200  # of tables where there is no terminal to fit


def console() -> Console:
    """Return the console of standard output."""
    found = Console()
    return found if found.is_terminal else Console(width=_LOG_WIDTH)


def say(out: Console, text: str) -> None:
    """Print one line as it is: unwrapped, square brackets untouched."""
    out.print(text, markup=False, highlight=False, soft_wrap=True)


def table(headings: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
    """Return a plain table; long cells are folded, never cut."""
    found = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        found.add_column(heading, overflow="fold")
    for row in rows:
        found.add_row(*(str(cell).replace("[", r"\[") for cell in row))
    return found


@contextlib.contextmanager
def listener(out: Console) -> Iterator[Listener]:
    """Give a listener for the execution of notebooks that suits the console."""
    if not out.is_terminal:
        yield _Lines(out)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=out, transient=True) as progress:
        yield _Live(out, progress)


class _Lines:
    """One line when a notebook starts and one when it ends."""

    def __init__(self, out: Console) -> None:
        self._out = out

    def started(self, job: Job) -> None:
        say(self._out, f"{job.page}: running ({job.reason})")

    def finished(self, outcome: Outcome) -> None:
        say(self._out, ending(outcome))


class _Live:
    """A moving line with the elapsed time for each running notebook, and one lasting line at its end."""

    def __init__(self, out: Console, progress: Progress) -> None:
        self._out, self._progress = out, progress
        self._tasks: dict[str, TaskID] = {}

    def started(self, job: Job) -> None:
        self._tasks[job.page] = self._progress.add_task(f"{job.page} ({job.reason})", total=None)

    def finished(self, outcome: Outcome) -> None:
        self._progress.remove_task(self._tasks.pop(outcome.page))
        say(self._out, ending(outcome))


def ending(outcome: Outcome) -> str:
    """Say in one line how a notebook ended."""
    if outcome.failure:
        return f"{outcome.page}: FAILED after {outcome.seconds:.0f} s {outcome.failure}"
    return f"{outcome.page}: done in {outcome.seconds:.0f} s"
