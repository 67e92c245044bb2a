"""Tables of results: mean and spread over seeds, as HTML that reads well in the book."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from pandas.io.formats.style import Styler

from fedlib.data import card
from fedlib.experiments.settings import Settings


def mean_sd(
    frame: pd.DataFrame, *, by: str, columns: str | None = None, digits: int = 3, name: str = "value"
) -> pd.DataFrame:
    """Return "mean ± sd" of ``value`` over seeds, one row for each ``by``, one column for each ``columns``.

    Per seed the values are averaged first (over rounds, classes and whatever else is left), so that the spread
    is that of a repetition. With one seed there is no spread to print; an empty frame gives an empty table, and
    what is not a number a dash.

    Args:
        frame: tidy rows with ``seed``, ``value`` and the named columns.
        by: column of the table's rows.
        columns: column of the table's columns; None makes one column.
        digits: decimals.
        name: heading of that one column.
    """
    rows = frame.assign(**{"": name}) if columns is None else frame
    column = columns or ""
    if rows.empty:
        return pd.DataFrame(index=pd.Index([], name=by))
    per_seed = rows.groupby([by, column, "seed"], observed=True)["value"].mean()
    grouped = per_seed.groupby(level=[0, 1], observed=True)
    mean, sd = grouped.mean(), grouped.std()
    cells = [
        "–" if pd.isna(m) else f"{m:.{digits}f}" + ("" if pd.isna(s) else f" ± {s:.{digits}f}")
        for m, s in zip(mean, sd, strict=True)
    ]
    return pd.Series(cells, index=mean.index).unstack(column).fillna("–")


def scale(settings: Settings, *others: Settings) -> str:
    """Say at what size a result was computed: data set and its kind, profile, number of seeds.

    Args:
        settings: of the result; profile and seeds are theirs.
        others: of the same experiment on other data.
    """
    kinds: dict[str, list[str]] = {}
    for name in dict.fromkeys(item.dataset for item in (settings, *others)):
        kinds.setdefault(card(name).kind, []).append(name)
    data = "; ".join(f"{', '.join(names)} ({kind})" for kind, names in kinds.items())
    seeds = f"{settings.seeds} seed" + ("s" if settings.seeds > 1 else "")
    return f"{data}, profile {settings.profile}, {seeds}"


# Small, so that seven columns of mean and spread fit a page; the caption does not scroll with a wider table.
_CAPTION = "caption-side: top; text-align: left; font-size: 1rem; max-width: 44rem"
_STYLES: list[Any] = [
    {"selector": "", "props": "font-size: 0.82em"},
    {"selector": "th, td", "props": "padding: 0.25em 0.5em"},
    {"selector": "caption", "props": _CAPTION},
]


def show(
    table: pd.DataFrame,
    caption: str,
    *,
    order: Sequence[object] | None = None,
    names: Mapping[str, str] | None = None,
    digits: int | None = None,
) -> Styler:
    """Return a table for display: caption above, text left, numbers right, a dash for what is missing.

    Args:
        table: rows by index; the index becomes the first column.
        caption: what to see, with data set, profile and number of seeds.
        order: index values in the order wanted, those that occur; None keeps the order.
        names: new names for columns, the index's name included.
        digits: decimals of fractional numbers; None leaves them as pandas shows them.
    """
    if order is not None:
        table = table.reindex([value for value in order if value in table.index])
    flat = table.rename_axis(columns=None).reset_index().rename(columns=dict(names or {}))
    text = [column for column in flat if not _looks_like_numbers(flat[column])]
    return (
        flat.style.format(precision=digits, na_rep="–")
        .hide(axis="index")
        .set_caption(caption)
        .set_uuid(_name(caption, flat))
        .set_properties(**{"text-align": "right", "white-space": "nowrap"})
        .set_properties(subset=text, **{"text-align": "left", "white-space": "normal"})
        .set_table_styles(_STYLES)
    )


def _name(caption: str, table: pd.DataFrame) -> str:
    """Return a name that is the same in every run and another for every table: cells are styled by it."""
    return hashlib.sha256(f"{caption}\n{table.to_csv()}".encode()).hexdigest()[:8]


def _looks_like_numbers(column: pd.Series) -> bool:
    if pd.api.types.is_numeric_dtype(column):
        return True
    return bool(column.astype(str).str.match(r"^[-+]?[\d.]+( ± [\d.]+)?$|^–$").all())
