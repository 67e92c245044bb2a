"""Tables of results: mean and spread over seeds, as HTML that reads well in the book."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from pandas.io.formats.style import Styler

from fedlib.errors import InputError


def mean_sd(frame: pd.DataFrame, *, by: str, columns: str, digits: int = 3) -> pd.DataFrame:
    """Return "mean ± sd" of ``value`` over seeds, one row for each ``by``, one column for each ``columns``.

    Per seed the values are averaged first (over rounds, classes and whatever else is left), so that the spread
    is that of a repetition. With one seed there is no spread to print.

    Args:
        frame: tidy rows with ``seed``, ``value`` and both named columns.
        by: column of the table's rows.
        columns: column of the table's columns.
        digits: decimals.

    Raises:
        InputError: an empty frame.
    """
    if frame.empty:
        raise InputError("no row to make a table of; a condition before it left nothing")
    per_seed = frame.groupby([by, columns, "seed"], observed=True)["value"].mean()
    grouped = per_seed.groupby(level=[0, 1], observed=True)
    cells = {
        key: f"{values.mean():.{digits}f}" + (f" ± {values.std():.{digits}f}" if len(values) > 1 else "")
        for key, values in grouped
    }
    return pd.Series(cells).rename_axis([by, columns]).unstack(columns).fillna("–")


def show(
    table: pd.DataFrame,
    caption: str,
    *,
    order: Sequence[object] | None = None,
    names: Mapping[str, str] | None = None,
) -> Styler:
    """Return a table for display: caption above, text left, numbers right.

    Args:
        table: rows by index; the index becomes the first column.
        caption: what to see, with data set, profile and number of seeds.
        order: index values in the order wanted; None keeps the order.
        names: new names for columns, the index's name included.
    """
    if order is not None:
        table = table.reindex(order)
    flat = table.rename_axis(columns=None).reset_index().rename(columns=dict(names or {}))
    text = [column for column in flat if not _looks_like_numbers(flat[column])]
    return (
        flat.style.hide(axis="index")
        .set_caption(caption)
        .set_uuid("t")
        .set_properties(**{"text-align": "right"})
        .set_properties(subset=text, **{"text-align": "left"})
        .set_table_styles([{"selector": "caption", "props": "caption-side: top; text-align: left"}])
    )


def _looks_like_numbers(column: pd.Series) -> bool:
    if pd.api.types.is_numeric_dtype(column):
        return True
    return bool(column.astype(str).str.match(r"^[-+]?[\d.]+( ± [\d.]+)?$|^–$").all())
