"""Figures of what FedCKA keeps: levels beside scores, and maps of layers over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedlib.report.figures import PALETTE, WIDTH, curves, style

MODES = {"threshold": "threshold τ", "percentage": "share ρ"}
"""Titles of the two ways to choose layers."""

_MARKERS = ("o", "s", "^", "D", "v", "P")


def named(rows: pd.DataFrame) -> pd.Series:
    """Return a name for the level of each row: ``threshold τ 0.9``; the method's name where there is none."""
    levels = rows["masking"].map(MODES) + " " + rows["level"].map("{:g}".format)
    names: pd.Series = levels.where(rows["level"].notna(), rows["method"])
    return names


def against_level(
    rows: pd.DataFrame,
    *,
    metrics: dict[str, str],
    references: pd.DataFrame,
    names: dict[str, str],
    title: str,
) -> Figure:
    """Draw numbers against the level, one column of panels for each masking and one row for each metric.

    Levels stand at equal distances. Small dots are seeds, the line their mean.

    Args:
        rows: masking, level, seed, metric, value.
        metrics: axis label by metric, from top to bottom.
        references: method, seed, metric, value: drawn as level lines where they have the metric.
        names: label of each method of ``references``.
        title: what the figure says.
    """
    modes = [mode for mode in MODES if mode in set(rows["masking"])]
    colours = sns.color_palette(PALETTE, len(names) + 1)
    with style():
        figure, axes = plt.subplots(
            len(metrics), len(modes), figsize=(WIDTH, 2.3 * len(metrics) + 0.7), sharey="row", sharex="col",
            squeeze=False, layout="constrained",
        )  # fmt: skip
        for column, mode in zip(axes.T, modes, strict=True):
            of_mode = rows[rows["masking"] == mode]
            levels = sorted(of_mode["level"].unique())
            for axis, (metric, label) in zip(column, metrics.items(), strict=True):
                found = of_mode[of_mode["metric"] == metric]
                places = found["level"].map(levels.index)
                axis.plot(places, found["value"], ".", color=colours[0], alpha=0.5)
                mean = found.groupby(places)["value"].mean()
                axis.plot(mean.index, mean, "o-", color=colours[0], label="FedCKA, mean over seeds")
                for number, (method, name) in enumerate(names.items(), 1):
                    other = references[(references["method"] == method) & (references["metric"] == metric)]
                    if len(other):
                        axis.axhline(
                            other["value"].mean(), color=colours[number], linestyle=("--", ":", "-.")[number - 1],
                            label=name,
                        )  # fmt: skip
                axis.set_ylabel(label if axis in axes[:, 0] else "")
            column[0].set_title(MODES[mode])
            column[-1].set_xticks(range(len(levels)), [f"{level:g}" for level in levels])
            column[-1].set_xlabel(MODES[mode])
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        figure.suptitle(title, fontsize=12)
    return figure


def layer_maps(
    table: pd.DataFrame,
    layers: pd.DataFrame,
    *,
    label: str,
    title: str,
    parts: Sequence[str],
    low: float = 0.0,
) -> Figure:
    """Draw numbers of layers over rounds as shades, one panel for each client, input of the network at the top.

    A strip on the left tells the part of the detector that a layer belongs to; lines separate its branches. White
    cells have no number.

    Args:
        table: rows are layers in network order, columns pairs (client, round); 0 to 1.
        layers: by layer the columns ``branch`` and ``part``.
        label: what the shades are.
        title: what the figure says.
        parts: names of the parts, in the order of the legend.
        low: number below which all shades are the same.
    """
    clients = list(dict.fromkeys(table.columns.get_level_values(0)))
    parts = [part for part in parts if part in set(layers["part"])]
    colours = sns.color_palette(PALETTE, len(parts))
    with style(**{"axes.grid": False}):
        figure, axes = plt.subplots(
            1, len(clients) + 1, figsize=(WIDTH, 0.062 * len(table) + 1.3), sharey=True, layout="constrained",
            width_ratios=[0.25, *[1] * len(clients)],
        )  # fmt: skip
        codes = layers["part"].map(parts.index).to_numpy()[:, None]
        shown = {"aspect": "auto", "interpolation": "nearest"}
        axes[0].imshow(codes, cmap=ListedColormap(colours), vmin=0, vmax=len(parts) - 1, **shown)
        axes[0].set(xticks=[], xlabel="part")
        image: Any = None
        for axis, client in zip(axes[1:], clients, strict=True):
            part = table[client]
            image = axis.imshow(part.to_numpy(), cmap="viridis", vmin=low, vmax=1, **shown)
            step = -(-len(part.columns) // 5)
            axis.set_xticks(range(0, len(part.columns), step), list(part.columns)[::step])
            axis.set(title=f"client {client}", xlabel="round")
        _branches(axes, layers["branch"].to_list())
        figure.colorbar(image, ax=axes[-1], label=label, extend="min" if low > 0 else "neither")
        handles = [Patch(color=colour, label=part) for colour, part in zip(colours, parts, strict=True)]
        figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=8.5)
        figure.suptitle(title, fontsize=12)
    return figure


def share_over_rounds(rows: pd.DataFrame, *, order: Sequence[str], title: str) -> Figure:
    """Draw the personal share over rounds, one panel for each masking and one line for each level.

    Args:
        rows: masking, level, seed, round, value, and ``name`` of the level.
        order: names of the levels.
        title: what the figure says.
    """
    modes = pd.Categorical(rows["masking"].map(MODES), list(MODES.values()), ordered=True)
    figure = curves(
        rows.assign(mode=modes), hue="name", column="mode", order=order, ylim=(0, 1.02),
        ylabel="personal share", title=title,
    )  # fmt: skip
    for axis in figure.axes:
        axis.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    return figure


def moved(rows: pd.DataFrame, *, title: str) -> Figure:
    """Draw which share of the layers lies below a threshold: colours are step sizes, dashes numbers of steps.

    Args:
        rows: step_size, steps, value (the score of a layer).
        title: what the figure says.
    """
    sizes, counts = (list(dict.fromkeys(rows[column])) for column in ("step_size", "steps"))
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.4), layout="constrained")
        for size, colour in zip(sizes, sns.color_palette(PALETTE, len(sizes)), strict=True):
            for number, count in enumerate(counts):
                found = rows[(rows["step_size"] == size) & (rows["steps"] == count)]
                scores = np.sort(found["value"].dropna().to_numpy())
                axis.step(
                    scores, np.arange(1, len(scores) + 1) / len(scores), where="post", color=colour,
                    linestyle=("-", "--", ":", "-.")[number % 4], label=f"step size {size:g}, {count:g} steps",
                )  # fmt: skip
        axis.set(xlim=(None, 1), ylim=(0, 1), xlabel="threshold τ", ylabel="layers with a lower score")
        figure.legend(loc="outside lower center", ncols=max(1, min(3, len(sizes))), frameon=False)
        figure.suptitle(title, fontsize=12)
    return figure


def score_ranges(table: pd.DataFrame, series: dict[str, str], *, title: str) -> Figure:
    """Draw several scores of each layer beside one another, in network order from left to right.

    Args:
        table: by layer in network order the column ``branch`` and those of ``series``.
        series: label by column.
        title: what the figure says.
    """
    branches = table["branch"].to_list()
    edges = _edges(branches)
    with style(**{"axes.grid": False}):
        figure, axis = plt.subplots(figsize=(WIDTH, 3.6), layout="constrained")
        for (column, label), colour, marker in zip(
            series.items(), sns.color_palette(PALETTE, len(series)), _MARKERS, strict=False
        ):
            axis.plot(range(len(table)), table[column], marker, color=colour, label=label, markersize=3.5)
        for edge in edges[1:-1]:
            axis.axvline(edge - 0.5, color="#bbbbbb", linewidth=1)
        # every second name one line lower, for branches may be narrow
        names = ["\n" * (number % 2) + branches[a] for number, a in enumerate(edges[:-1])]
        axis.set_xticks([(a + b - 1) / 2 for a, b in pairwise(edges)], names)
        axis.tick_params(axis="x", length=0)
        axis.set(
            ylim=(-0.03, 1.03), xlim=(-1, len(table)), ylabel="CKA", xlabel="layers, from input to output"
        )
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
        figure.suptitle(title, fontsize=12)
    return figure


def _edges(branches: list[str]) -> list[int]:
    return [0, *(i for i, (a, b) in enumerate(pairwise(branches), 1) if a != b), len(branches)]


def _branches(axes: Sequence[Any], branches: list[str]) -> None:
    """Write the names of the branches on the left and draw lines between them."""
    edges = _edges(branches)
    axes[0].set_yticks([(a + b - 1) / 2 for a, b in pairwise(edges)], [branches[a] for a in edges[:-1]])
    for axis in axes:
        axis.tick_params(axis="y", length=0)
        for edge in edges[1:-1]:
            axis.axhline(edge - 0.5, color="white", linewidth=1.2)
