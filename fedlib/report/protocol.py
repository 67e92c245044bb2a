"""Figures of the VCL-FPFT protocol page: pictures of each class, and who holds how many of which class."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.figure import Figure

from fedlib.data.imageset import Split
from fedlib.report.figures import WIDTH, style


def samples(sets: Mapping[str, Split], *, per_class: int, title: str) -> Figure:
    """Draw the first pictures of each class, a row of blocks for each set.

    Args:
        sets: by name in the figure.
        per_class: pictures of a class, one above the other.
        title: what the figure says.
    """
    columns = max(int(split.labels.max()) + 1 for split in sets.values())
    with style(**{"axes.grid": False}):
        figure, axes = plt.subplots(
            len(sets), columns, figsize=(WIDTH, len(sets) * (0.62 * per_class + 0.35)), squeeze=False,
            layout="constrained",
        )  # fmt: skip
        for row, (name, split) in zip(axes, sets.items(), strict=True):
            for label, axis in enumerate(row):
                axis.axis("off")
                own = split.images[np.flatnonzero(split.labels == label)[:per_class]]
                if not len(own):
                    continue
                column = np.concatenate(list(own))  # one above the other
                gray = column.shape[2] == 1
                axis.imshow(column[:, :, 0] if gray else column, cmap="gray" if gray else None)
                axis.set_title(f"{label}", fontsize=8)
            row[0].axis("on")
            row[0].set(xticks=[], yticks=[])
            row[0].set_ylabel(name, fontsize=9)
        figure.suptitle(title, fontsize=12)
    return figure


def by_domain(split: Split, domains: np.ndarray) -> dict[str, Split]:
    """Return the pictures of each domain on their own, by ``hospital 0`` and so on.

    Args:
        split: pictures and labels.
        domains: of the pictures, (N,).
    """
    return {
        f"hospital {domain}": Split(split.images[domains == domain], split.labels[domains == domain])
        for domain in np.unique(domains)
    }


def holdings(counts: Mapping[str, np.ndarray], *, title: str) -> Figure:
    """Draw the clients' samples of each class as stacked bars, one panel for each partition.

    Args:
        counts: by name of the partition, samples (clients, classes).
        title: what the figure says.
    """
    with style():
        figure, axes = plt.subplots(
            1, len(counts), figsize=(WIDTH, 2.9), sharey=True, squeeze=False, layout="constrained"
        )
        for axis, (name, table) in zip(axes[0], counts.items(), strict=True):
            colours = sns.color_palette("husl", table.shape[1])
            left = np.zeros(len(table))
            for label, colour in enumerate(colours):
                bars = axis.barh(range(len(table)), table[:, label], left=left, color=colour, height=0.75)
                names = [str(label) if n >= 0.08 * table.sum(1).max() else "" for n in table[:, label]]
                axis.bar_label(bars, labels=names, label_type="center", fontsize=7)
                left = left + table[:, label]
            axis.set(title=name, xlabel="images")
            axis.grid(visible=False, axis="y")
        axes[0][0].set(ylabel="client", yticks=range(len(next(iter(counts.values())))))
        axes[0][0].invert_yaxis()
        figure.suptitle(title, fontsize=12)
    return figure
