"""Reading the register: YAML entries, printed table cells from CSV, lookups and counts."""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources

import yaml
from pydantic import Field, ValidationError

from fedlib.errors import InputError, choose
from fedlib.report.register import schema

_FOLDER = resources.files("fedlib.report.register")


class _Column(schema.Frozen):
    """One printed column of a CSV file: label in words, metric and column values of the rule, column that holds
    the printed standard deviation, audit of its cells."""

    label: str
    metric: str
    where: schema.Filter = Field(default={})
    spread: str | None = None
    audit: str | None = None


class _CellsFrom(schema.Frozen):
    """How the cells of one CSV file become entries.

    ``id`` and ``statement`` are templates over the row as printed, ``{column}`` and ``{label}``. The values of
    ``ours`` are templates over the row with ``names`` applied (``names: {dataset: {BloodMNIST: bloodmnist}}``).
    ``sources`` gives the data set of a row by its printed ``dataset``; without it ``data`` holds for all rows.
    """

    file: str
    id: str
    where: str
    statement: str
    unit: str = ""
    columns: dict[str, _Column]
    names: dict[str, dict[str, str]] = Field(default={})
    data: tuple[str, ...] = ()
    sources: dict[str, str] = Field(default={})
    notebook: str
    ours: dict[str, str]
    rounds: schema.Window | None = None
    tolerance: float
    factor: float = 1.0
    deterministic: bool = False
    note: str = ""
    reason: str


def table(file: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file in ``register/tables``, numbers as printed."""
    folder = _FOLDER / "tables"
    known = sorted(item.name for item in folder.iterdir() if item.name.endswith(".csv"))
    text = folder.joinpath(choose("table file", file, known)).read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))


@cache
def load() -> schema.Register:
    """Return the whole register (read once per process).

    Raises:
        InputError: a file that does not fit the model; the message names the file and the entry.
    """
    titles: list[schema.Title] = []
    entries: list[schema.Entry] = []
    for paper in schema.PAPERS:
        text = (_FOLDER / f"{paper}.yaml").read_text("utf-8")
        title, found = read(text, paper)
        titles.append(title)
        entries.extend(found)
    try:
        return schema.Register(titles=tuple(titles), entries=tuple(entries))
    except ValidationError as error:
        raise InputError(f"register: {_explain(error)}") from None


def read(text: str, paper: str) -> tuple[schema.Title, list[schema.Entry]]:
    """Return the title and entries in the YAML text of one paper's register file.

    Raises:
        InputError: the text does not fit the model.
    """
    document = yaml.load(text, Loader=yaml.CSafeLoader)  # ten times faster than the loader in Python
    if missing := {"title", "reason", "data", "entries"} - set(document):
        raise InputError(f"register {paper}.yaml lacks {', '.join(sorted(missing))}")
    defaults = {"paper": paper, "reason": document["reason"], "data": document["data"]}
    entries: list[schema.Entry] = []
    name = "title"
    try:
        title = schema.Title(paper=paper, **document["title"])
        for item in document["entries"]:
            if "cells_from" in item:
                name = f"cells_from {item['cells_from'].get('file')}"
                entries.extend(
                    _expand(_CellsFrom(**({"reason": defaults["reason"]} | item["cells_from"])), paper)
                )
            else:
                name = item.get("id", "an entry without id")
                entries.append(schema.Entry(**(defaults | item)))
    except ValidationError as error:
        raise InputError(f"register {paper}.yaml, {name}: {_explain(error)}") from None
    return title, entries


def lookup(claim_id: str) -> schema.Entry:
    """Return the entry of an id.

    Raises:
        InputError: no such entry; the message names the closest one.
    """
    if claim_id not in _by_id():
        close = difflib.get_close_matches(claim_id, _by_id(), n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise InputError(f"claim id is {claim_id!r}, which is not in the register{hint}")
    return _by_id()[claim_id]


def select(
    paper: str | None = None, kinds: Iterable[str] | None = None, notebook: str | None = None
) -> list[schema.Entry]:
    """Return the entries of a paper, of some kinds, of a page; None means all."""
    if paper is not None:
        choose("paper", paper, schema.PAPERS)
    wanted = (
        [choose("kind", kind, schema.KINDS) for kind in kinds] if kinds is not None else list(schema.KINDS)
    )
    return [
        entry
        for entry in load().entries
        if paper in (None, entry.paper) and entry.kind in wanted and notebook in (None, entry.notebook)
    ]


def title(paper: str) -> schema.Title:
    """Return the names of a paper."""
    choose("paper", paper, schema.PAPERS)
    return next(item for item in load().titles if item.paper == paper)


def coverage(words: Mapping[str, str], kinds: Iterable[str] | None = None) -> dict[str, dict[str, int]]:
    """Return how many entries of each paper have each verdict.

    Args:
        words: verdict word by id; ids that are missing count as "not attempted".
        kinds: kinds of entries that count; None means all.

    Returns:
        ``{paper: {word: count}}``, every paper and word present.
    """
    for claim_id, word in words.items():
        lookup(claim_id)
        choose("verdict", word, schema.WORDS)
    counts = {paper: dict.fromkeys(schema.WORDS, 0) for paper in schema.PAPERS}
    for entry in select(kinds=kinds):
        counts[entry.paper][words.get(entry.id, schema.NOT_ATTEMPTED)] += 1
    return counts


@cache
def _by_id() -> dict[str, schema.Entry]:
    return {entry.id: entry for entry in load().entries}


def _expand(cells: _CellsFrom, paper: str) -> list[schema.Entry]:
    rows = table(cells.file)
    numeric = {*cells.columns, *(column.spread for column in cells.columns.values())}
    entries = []
    for row in rows:
        key = {name: text for name, text in row.items() if name not in numeric}
        mapped = {name: cells.names.get(name, {}).get(text, text) for name, text in key.items()}
        for name, column in cells.columns.items():
            if not row[name]:
                continue  # the paper prints a dash
            value = _printed(row[name], row[column.spread] if column.spread else "", cells.unit)
            part = schema.Rule(
                says=f"{column.label} {value}",
                metric=column.metric,
                where=column.where,
                ours={side: text.format(**mapped) for side, text in cells.ours.items()},
                rounds=cells.rounds,
                value=value.value,
                # A printed standard deviation says more about what counts as equal than our general tolerance.
                tolerance=max(cells.tolerance, value.spread or 0.0),
                factor=cells.factor,
                deterministic=cells.deterministic,
            )
            words = {**key, "column": name, "label": column.label}
            entries.append(
                schema.Entry(
                    id=cells.id.format(**words),
                    paper=paper,
                    kind="cell",
                    where=cells.where,
                    statement=cells.statement.format(**words),
                    values=(value,),
                    data=(cells.sources[row["dataset"]],) if cells.sources else cells.data,
                    notebook=cells.notebook,
                    parts=(part,),
                    audit=column.audit,
                    reason=cells.reason,
                    note=cells.note,
                    cell=schema.Cell(file=cells.file, row=key, column=name),
                )
            )
    return entries


def _printed(number: str, spread: str, unit: str) -> schema.Value:
    return schema.Value(
        value=float(number),
        unit=unit,
        spread=float(spread) if spread else None,
        printed=f"{number} ± {spread}" if spread else number,
    )


def _explain(error: ValidationError) -> str:
    parts = []
    for item in error.errors():
        place = ".".join(str(step) for step in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        parts.append(f"{place}: {message}" if place else message)
    return "; ".join(parts)
