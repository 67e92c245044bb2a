"""The command line: ``fedlib run | book | record | runs | data | doctor``.

Nothing heavy is imported here, so that ``fedlib --help`` answers at once; each command imports what it needs.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from fedlib.cli import book, data, doctor, record, run, runs
from fedlib.errors import InputError

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130


class _Group(TyperGroup):
    """Turns bad input (exit status 2) and files that cannot be used (1) into one line, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(BAD_INPUT) from None
        except OSError as error:
            if error.filename is None:  # no file: a closed pipe, for example, which is not ours to explain
                raise
            typer.echo(f"error: {error.filename}: {error.strerror}", err=True)
            raise typer.Exit(FAILED) from None
        except KeyboardInterrupt:
            typer.echo("interrupted; what was finished is kept", err=True)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Run the notebooks of the companion, build its book, and look after its runs and data.",
)
app.command("run")(run.run)
app.command("book")(book.book)
app.command("record")(record.record)
app.add_typer(runs.app, name="runs")
app.command("data")(data.data)
app.command("doctor")(doctor.doctor)
