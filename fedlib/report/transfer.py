"""Figures of the pages on VCL-FPFT: rows side by side, accuracy against bytes and over tasks, features in 2D."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from fedlib import seeds
from fedlib.report.figures import PALETTE, WIDTH, style

_MARKERS = (*"osD^vP*X<>hdp8", (4, 1, 0))  # as many as methods: the last is a star with four points


def side_by_side(
    frame: pd.DataFrame, panels: Mapping[str, str], *, by: str, order: Sequence[str], title: str
) -> Figure:
    """Draw horizontal bars, one panel for each metric and one row for each value of ``by``; mean and deviation.

    Args:
        frame: tidy rows with seed, metric, value and ``by``; repeated rows of a seed are averaged.
        panels: label of the horizontal axis by metric.
        by: column of the rows.
        order: its values from top to bottom, those that occur.
        title: what the figure says.
    """
    names = [name for name in order if name in set(frame[by])]
    means = frame.groupby([by, "metric", "seed"])["value"].mean().groupby([by, "metric"]).agg(["mean", "std"])
    with style():
        figure, axes = plt.subplots(
            1, len(panels), figsize=(WIDTH, 0.33 * len(names) + 1.3), sharey=True, squeeze=False,
            layout="constrained",
        )  # fmt: skip
        colours = sns.color_palette(PALETTE, len(panels))
        for axis, (metric, label), colour in zip(axes[0], panels.items(), colours, strict=True):
            rows = means.xs(metric, level="metric").reindex(names)
            axis.barh(names, rows["mean"], xerr=rows["std"].fillna(0), color=colour, capsize=3, height=0.65)
            for place, value in enumerate(rows["mean"]):
                if np.isfinite(value):
                    inside = {"xy": (0.02, place), "xycoords": ("axes fraction", "data")}
                    axis.annotate(
                        f"{value:.1f}", **inside, va="center", fontsize=8,
                        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.85},
                    )  # fmt: skip
            axis.set_xlabel(label)
            axis.grid(visible=False, axis="y")
        axes[0][0].invert_yaxis()
        figure.suptitle(title, fontsize=12)
    return figure


def against_bytes(
    frame: pd.DataFrame,
    *,
    names: Mapping[str, str],
    title: str,
    ylabel: str,
    metric: str = "overall_accuracy",
) -> Figure:
    """Draw accuracy over the upload of a client (logarithmic), one panel for each partition.

    Args:
        frame: tidy rows with seed, partition, method, metric (``metric`` and uplink_bytes) and value.
        names: of the methods in the legend; methods that send nothing are left out.
        title: what the figure says.
        ylabel: what ``metric`` is, with its unit.
        metric: of the vertical axis.
    """
    table = frame[frame["metric"].isin([metric, "uplink_bytes"])]
    table = table.groupby(["partition", "method", "metric"])["value"].mean().unstack()
    deviation = frame[frame["metric"] == metric].groupby(["partition", "method"])["value"].std().fillna(0)
    splits = list(dict.fromkeys(frame["partition"]))
    colours = sns.color_palette("husl", len(names))
    with style():
        figure, axes = plt.subplots(
            1, len(splits), figsize=(WIDTH, 3.9), sharey=True, squeeze=False, layout="constrained"
        )
        for axis, split in zip(axes[0], splits, strict=True):
            for place, (method, label) in enumerate(names.items()):
                if (split, method) not in table.index or not table.loc[(split, method), "uplink_bytes"] > 0:
                    continue
                row = table.loc[(split, method)]
                axis.errorbar(
                    row["uplink_bytes"] / 1e3, row[metric], yerr=deviation[(split, method)],
                    marker=_MARKERS[place % len(_MARKERS)], color=colours[place], linestyle="none", label=label,
                    markeredgecolor="black", markeredgewidth=0.5, markersize=7,
                )  # fmt: skip
            axis.set(xscale="log", xlabel="upload of a client, kB", title=split)
        axes[0][0].set_ylabel(ylabel)
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        figure.suptitle(title, fontsize=12)
    return figure


def accuracy_matrices(frame: pd.DataFrame, *, scopes: Mapping[str, str], title: str) -> Figure:
    """Draw the accuracy on each task after each task, one panel for each data set and scope; means over seeds.

    Args:
        frame: rows of one method and partition with dataset, scope, after, task and value, in percent.
        scopes: title of a row of panels by scope.
        title: what the figure says.
    """
    sets = list(dict.fromkeys(frame["dataset"]))
    means = frame.groupby(["scope", "dataset", "after", "task"])["value"].mean()
    with style(**{"axes.grid": False}):
        figure, axes = plt.subplots(
            len(scopes),
            len(sets),
            figsize=(WIDTH, 1.9 * len(scopes) + 0.6),
            squeeze=False,
            layout="constrained",
        )
        for place, (row, (scope, label)) in enumerate(zip(axes, scopes.items(), strict=True)):
            for axis, name in zip(row, sets, strict=True):
                table = means.loc[(scope, name)].unstack("task")
                sns.heatmap(
                    table, annot=True, fmt=".0f", cmap="Blues", vmin=0, vmax=100, cbar=False, square=True, ax=axis,
                    annot_kws={"fontsize": 8},
                )  # fmt: skip
                axis.tick_params(axis="y", rotation=0)
                axis.set(title="" if place else name, xlabel="", ylabel="")
            row[0].set_ylabel(f"{label}\nafter task")
        for axis in axes[-1]:
            axis.set_xlabel("test images of task")
        figure.suptitle(title, fontsize=12)
    return figure


def in_two_dimensions(
    features: Mapping[str, tuple[torch.Tensor, torch.Tensor]],
    *,
    class_names: Sequence[str],
    title: str,
    base: str | None = None,
    neighbours: bool = False,
) -> Figure:
    """Draw sets of features in the plane of the first two principal components of one of them.

    Args:
        features: by the title of the panel: vectors (N, d) and classes (N,).
        class_names: of the classes, by label.
        title: what the figure says.
        base: the set that gives the plane; None takes the first.
        neighbours: add a second row, t-SNE of all sets together (van der Maaten and Hinton 2008): near points are
            near in d dimensions, and distances between groups and their sizes mean nothing.
    """
    first = features[base or next(iter(features))][0]
    sets = [vectors.double().numpy() for vectors, _ in features.values()]
    plane = PCA(2, svd_solver="full").fit(first.double().numpy())
    rows = {("first component", "second component"): [plane.transform(vectors) for vectors in sets]}
    if neighbours:
        rows[("t-SNE 1", "t-SNE 2")] = _neighbours(sets)
    colours = sns.color_palette("husl", len(class_names))
    with style(**{"axes.grid": False}):
        figure, axes = plt.subplots(
            len(rows), len(features), figsize=(WIDTH, 3.3 * len(rows)), sharex="row", sharey="row", squeeze=False,
            layout="constrained",
        )  # fmt: skip
        for line, ((across, up), drawn) in zip(axes, rows.items(), strict=True):
            for axis, points, (_, labels) in zip(line, drawn, features.values(), strict=True):
                for label, text in enumerate(class_names):
                    own = points[labels.numpy() == label]
                    if not len(own):
                        continue
                    axis.scatter(*own.T, s=8, color=colours[label], alpha=0.7, linewidth=0)
                    axis.annotate(
                        text, own.mean(0), xytext=(0, 7), textcoords="offset points", fontsize=9, ha="center",
                    )  # fmt: skip
                axis.set_xlabel(across)
            line[0].set_ylabel(up)
        for axis, name in zip(axes[0], features, strict=True):
            axis.set_title(name)
        figure.suptitle(title, fontsize=12)
    return figure


def _neighbours(sets: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return two coordinates of each vector by t-SNE, all sets in one map."""
    together = np.concatenate(sets)
    perplexity = min(30.0, (len(together) - 1) / 3)
    chosen = TSNE(2, perplexity=perplexity, init="pca", random_state=seeds.integer(0, "t-sne") % 2**32)
    return np.split(chosen.fit_transform(together), np.cumsum([len(vectors) for vectors in sets])[:-1])
