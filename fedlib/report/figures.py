"""Figures in one style: opaque white (readable in dark mode too), one width, one palette, never colour alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

WIDTH = 7.0  # inches; fits the text column
PALETTE = "colorblind"

STYLE: Any = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "figure.dpi": 110,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "svg.hashsalt": "fedlib",
}


@contextmanager
def style(**changes: Any) -> Iterator[None]:
    """Draw inside the block in the book's style, with some of its settings changed."""
    # A backend that is loaded inside rc_context loses its interactive mode on leaving it, and a notebook then
    # shows the first figure only; so it is loaded before.
    plt.switch_backend(matplotlib.get_backend())
    with plt.rc_context(STYLE | changes):
        yield


def curves(
    frame: pd.DataFrame,
    *,
    hue: str,
    ylabel: str,
    title: str,
    order: Sequence[str] | None = None,
    x: str = "round",
    xlabel: str = "round",
    column: str | None = None,
    column_title: str = "{}",
    events: dict[str, float] | None = None,
    ylim: tuple[float, float] | None = None,
) -> Figure:
    """Draw ``value`` over ``x``: the mean over all other columns as a line, a standard deviation as a band.

    Args:
        frame: tidy rows with the columns ``x``, ``hue``, ``value``, and ``column`` if given.
        hue: column that tells the lines apart (colour and dashes).
        ylabel: what ``value`` is, with its unit.
        title: what the figure says.
        order: the values of ``hue`` to draw, in this order; None draws all, sorted.
        x: column of the horizontal axis.
        xlabel: what it is, with its unit.
        column: column with one panel for each of its values.
        column_title: format of a panel's title.
        events: named vertical lines, for example ``{"departure": 12.5}``.
        ylim: limits of the vertical axis.
    """
    lines = list(order) if order is not None else _levels(frame[hue])
    panels = _levels(frame[column]) if column else [None]
    with style():
        figure, axes = plt.subplots(
            1, len(panels), figsize=(WIDTH, 3.4), sharey=True, squeeze=False, layout="constrained"
        )
        for axis, panel in zip(axes[0], panels, strict=True):
            rows = frame if panel is None else frame[frame[column] == panel]
            sns.lineplot(
                data=rows[rows[hue].isin(lines)],
                x=x, y="value", hue=hue, style=hue, hue_order=lines, style_order=lines,
                errorbar="sd", palette=PALETTE, ax=axis, legend=axis is axes[0][-1],
            )  # fmt: skip
            axis.set(xlabel=xlabel, ylabel=ylabel, title=column_title.format(panel) if column else "")
            if ylim:
                axis.set_ylim(*ylim)
            for name, place in (events or {}).items():
                axis.axvline(place, color="#555555", linewidth=1, linestyle=":")
                axis.annotate(
                    name, (place, 0.02), xycoords=("data", "axes fraction"), rotation=90,
                    ha="right", va="bottom", fontsize=8, color="#333333",
                )  # fmt: skip
        _legend_below(figure, axes[0][-1])
        figure.suptitle(title, fontsize=12)
    return figure


def bars(
    frame: pd.DataFrame,
    *,
    x: str,
    hue: str,
    xlabel: str,
    ylabel: str,
    title: str,
    order: Sequence[str] | None = None,
) -> Figure:
    """Draw the mean of ``value`` as bars with a standard deviation, grouped by ``x``, hatched by ``hue``.

    Args:
        frame: tidy rows with the columns ``x``, ``hue`` and ``value``.
        x: column of the groups.
        hue: column of the bars in a group.
        xlabel: what the groups are.
        ylabel: what ``value`` is, with its unit.
        title: what the figure says.
        order: the values of ``hue`` to draw, in this order.
    """
    lines = list(order) if order is not None else _levels(frame[hue])
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.4), layout="constrained")
        sns.barplot(
            data=frame, x=x, y="value", hue=hue, hue_order=lines, errorbar="sd", palette=PALETTE, ax=axis,
            err_kws={"linewidth": 1.2}, capsize=0.15,
        )  # fmt: skip
        for container, hatch in zip(axis.containers, ("", "//", "..", "xx", "\\\\", "++"), strict=False):
            for bar in container.patches if hasattr(container, "patches") else []:
                bar.set(hatch=hatch, edgecolor="white")
        axis.set(xlabel=xlabel, ylabel=ylabel)
        _legend_below(figure, axis)
        figure.suptitle(title, fontsize=12)
    return figure


def heat_map(table: pd.DataFrame, *, label: str, title: str, number_format: str = "d") -> Figure:
    """Draw a table of numbers as shaded cells with the numbers in them.

    Args:
        table: numbers; the names of index and columns become the axis labels.
        label: what the numbers are, with their unit.
        title: what the figure says.
        number_format: format of the numbers.
    """
    with style(**{"axes.grid": False}):
        figure, axis = plt.subplots(figsize=(WIDTH, 0.32 * len(table) + 1.4), layout="constrained")
        sns.heatmap(table, annot=True, fmt=number_format, cmap="Blues", ax=axis, cbar_kws={"label": label})
        axis.tick_params(axis="y", rotation=0)
        figure.suptitle(title, fontsize=12)
    return figure


def _levels(column: pd.Series) -> list[Any]:
    # Values in order; an ordered category has its own.
    return list(column.drop_duplicates().sort_values())


def _legend_below(figure: Figure, axis: Any) -> None:
    handles, names = axis.get_legend_handles_labels()
    if axis.get_legend():
        axis.get_legend().remove()
    columns = max(1, min(4, 88 // (8 + max(map(len, names), default=0))))  # as many as fit the width
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)
