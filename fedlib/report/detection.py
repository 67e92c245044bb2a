"""Tables and figures of the pages on federated detection: the authors' numbers beside ours, never as one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from fedlib.report.figures import PALETTE, WIDTH, style
from fedlib.report.measure import Estimate, estimate
from fedlib.report.register import table

METHODS = {
    "start": "common start, not trained further",
    "own_domain": "own domain only",
    "centralized": "centralized",
    "fedavg": "FedAvg",
    "fedprox": "FedProx (ours, extra)",
    "scaffold": "SCAFFOLD (ours, extra)",
    "feddyn": "FedDyn",
    "pcgrad": "PCGrad",
    "fedrep": "FedRep",
    "fedbn": "FedBN",
    "fedmc": "FedMC",
    "fedselect": "FedSelect",
    "fedcka": "FedCKA",
    "fedcka_percentage": "FedCKA, percentage",
}
"""Rows of the tables: names by method, in the order of the paper's Table II with ours among them."""

AUTHORS = "authors' repository [code],\nnuScenes"
AUTHORS_NDS = "fedcka_table2_nds.csv"


def authors_nds() -> pd.DataFrame:
    """Return NDS as the authors' repository prints it: one row for each method, domains A to E and ``average``.

    The body of the paper's Table II is not in the text that is available to us.
    """
    frame = pd.DataFrame(table(AUTHORS_NDS)).set_index("method")
    return frame.astype(float)


def difference(frame: pd.DataFrame, method: str, other: str) -> Estimate:
    """Return the mean difference of two methods with its 95 % interval, paired by seed.

    Args:
        frame: rows with seed, method and value. A method with one seed serves all seeds of the other.
        method: whose value is on the left.
        other: what is taken away.

    Returns:
        the difference; NaN where no seed has both.
    """
    values = frame.groupby(["method", "seed"])["value"].mean()
    left, right = values[method], values[other]
    if len(left) == 1 or len(right) == 1:
        return estimate(np.subtract(left.to_numpy(), right.to_numpy()))
    paired = (left - right).dropna()
    return estimate(paired if len(paired) else [float("nan")])


def outcome(effect: Estimate) -> str:
    """Return what an interval says: higher, lower or undecided."""
    if effect.low is None or effect.high is None:
        return "one seed"
    if effect.low > 0:
        return "higher"
    return "lower" if effect.high < 0 else "undecided"


def differences(frame: pd.DataFrame, others: Mapping[str, str], methods: Sequence[str]) -> pd.DataFrame:
    """Return the differences of methods to some others in words: ``+0.010 [+0.002, +0.018] higher``.

    Args:
        frame: see ``difference``.
        others: heading of the column by method that is taken away.
        methods: rows, those that occur.
    """
    there = set(frame["method"])
    rows = {}
    for method in methods:
        if method not in there:
            continue
        cells = {}
        for other, heading in others.items():
            effect = difference(frame, method, other)
            known = method != other and not math.isnan(effect.mean)
            cells[heading] = f"{_interval(effect)} {outcome(effect)}" if known else "–"
        rows[METHODS[method]] = cells
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")


def _interval(effect: Estimate) -> str:
    if effect.low is None or effect.high is None:
        return _signed(effect.mean)
    return f"{_signed(effect.mean)} [{_signed(effect.low)}, {_signed(effect.high)}]"


def _signed(value: float) -> str:
    return f"{round(value, 3) + 0.0:+.3f}".replace("-", "−")  # no minus zero


def counted(frame: pd.DataFrame, methods: Sequence[str], other: str = "own_domain") -> pd.DataFrame:
    """Return on how many domains each method is above another, below it, or neither is decided.

    Args:
        frame: rows with seed, method, domain and value.
        methods: rows, those that occur.
        other: what they are compared with.
    """
    rows = {}
    for method in methods:
        if method in set(frame["method"]):
            effects = [difference(part, method, other) for _, part in frame.groupby("domain")]
            words = [outcome(effect) for effect in effects]
            mean = sum(effect.mean > 0 for effect in effects)
            rows[METHODS[method]] = {"mean above": mean} | {
                name: words.count(name) for name in ("higher", "undecided", "lower")
            }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")


def named(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the names of ``METHODS`` in a column ``row``, as an ordered category."""
    names = [METHODS[method] for method in METHODS]
    return frame.assign(row=pd.Categorical(frame["method"].map(METHODS), names, ordered=True))


def two_sources(theirs: pd.Series, frame: pd.DataFrame, *, ours: str, label: str, title: str) -> Figure:
    """Draw one number for each method: the authors' on the left, ours on the right, each with an axis of its own.

    Args:
        theirs: the authors' numbers by method.
        frame: ours: rows with seed, method and value.
        ours: title of our panel: data and seeds.
        label: of both axes.
        title: what the figure says.
    """
    seeds = frame.groupby(["method", "seed"])["value"].mean().groupby("method").agg(["mean", "std"])
    methods = [name for name in METHODS if name in seeds.index or name in theirs.index]
    places = {name: place for place, name in enumerate(methods)}
    federated = [name not in ("start", "own_domain", "centralized") for name in methods]
    blue, orange = sns.color_palette(PALETTE)[:2]
    with style():
        figure, axes = plt.subplots(
            1, 2, figsize=(WIDTH, 0.3 * len(methods) + 1.5), sharey=True, layout="constrained"
        )
        shown = theirs[[name for name in methods if name in theirs.index]]
        axes[0].plot(shown, [places[name] for name in shown.index], "s", color=orange, markersize=7)
        mean = seeds.loc[[name for name in methods if name in seeds.index]]
        axes[1].errorbar(
            mean["mean"], [places[name] for name in mean.index], xerr=mean["std"].fillna(0), fmt="o", color=blue,
            capsize=3, markersize=6,
        )  # fmt: skip
        for axis, heading in zip(axes, (AUTHORS, ours), strict=True):
            axis.set(xlabel=label)
            axis.set_title(heading, fontsize=10)
            axis.axhline(federated.index(True) - 0.5, color="#888888", linewidth=1, linestyle=":")
        axes[0].set(
            yticks=list(places.values()), yticklabels=[METHODS[name] for name in methods],
            ylim=(len(methods) - 0.5, -0.5),
        )  # fmt: skip
        figure.suptitle(title, fontsize=12)
    return figure


def gains_of_two(theirs: pd.DataFrame, ours: pd.DataFrame, *, ours_title: str, title: str) -> Figure:
    """Draw the gains of methods by domain: the authors' on the left, ours on the right, each in its own colours.

    Args:
        theirs: differences; rows are names of methods, columns domains.
        ours: the same of our runs.
        ours_title: of our panel: data and seeds.
        title: what the figure says.
    """
    with style(**{"axes.grid": False}):
        figure, axes = plt.subplots(
            1, 2, figsize=(WIDTH, 0.32 * len(ours) + 1.9), sharey=True, layout="constrained"
        )
        panels = ((theirs.reindex(ours.index), AUTHORS, "+.2f"), (ours, ours_title, "+.3f"))
        for axis, (part, heading, digits) in zip(axes, panels, strict=True):
            most = float(part.abs().to_numpy().max()) or 1.0
            sns.heatmap(
                part, annot=True, fmt=digits, cmap="RdBu", center=0, vmin=-most, vmax=most, ax=axis,
                cbar_kws={"label": "gain in NDS", "location": "bottom", "shrink": 0.8},
                annot_kws={"fontsize": 7},
            )  # fmt: skip
            axis.set(xlabel="client and its domain", ylabel="")
            axis.set_title(heading, fontsize=10)
            axis.tick_params(axis="y", rotation=0)
        figure.suptitle(title, fontsize=12)
    return figure


def matrices(
    frame: pd.DataFrame,
    panels: Mapping[str, str],
    *,
    label: str,
    title: str,
    by: str = "method",
    differences: bool = False,
) -> Figure:
    """Draw the score of each client's model on each domain, in several panels with one scale of colours.

    Args:
        frame: rows with seed, client, domain, value and ``by``; the mean over seeds is drawn.
        panels: title of each panel by its value of ``by``, at least one.
        label: what the numbers are.
        title: what the figure says.
        by: column that tells the panels apart.
        differences: the numbers lie around 0.
    """
    means = frame.groupby([by, "client", "domain"])["value"].mean()
    rows = (len(panels) + 1) // 2
    least, most = (float(means[list(panels)].agg(name)) for name in ("min", "max"))
    colours, digits = "Blues", ".2f"
    if differences:
        most = max(-least, most)
        least, colours, digits = -most, "RdBu", "+.2f"
    with style(**{"axes.grid": False}):
        figure, axes = plt.subplots(
            rows, 2, figsize=(WIDTH, 2.6 * rows + 0.7), squeeze=False, layout="constrained", sharey=True
        )
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        for axis, (panel, heading) in zip(axes.flat, panels.items(), strict=False):
            sns.heatmap(
                means[panel].unstack("domain"), annot=True, fmt=digits, cmap=colours, vmin=least, vmax=most,
                cbar=False, square=True, ax=axis, annot_kws={"fontsize": 9},
            )  # fmt: skip
            axis.tick_params(axis="y", rotation=0)
            axis.set(xlabel="scored on domain", ylabel="model of client", title=heading)
        scale = plt.cm.ScalarMappable(plt.Normalize(least, most), colours)
        figure.colorbar(scale, ax=axes, label=label, shrink=0.6)
        figure.suptitle(title, fontsize=12)
    return figure
