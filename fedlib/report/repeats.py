"""What the page on Table VI of the FedCKA paper shows beside tables."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from fedlib.report.figures import PALETTE, WIDTH, style

_MARKERS = ("o", "s", "^", "v", "D", "P", "X")


def repetitions(frame: pd.DataFrame, names: Mapping[str, str], *, label: str, title: str) -> Figure:
    """Draw every repetition of each method as a point, one row a method, the mean as an upright line.

    Args:
        frame: rows with seed, method and value.
        names: labels of the methods, from top to bottom; those that occur.
        label: what the value is.
        title: what the figure says.
    """
    shown = [name for name in names if name in set(frame["method"])]
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 0.34 * len(shown) + 1.4), layout="constrained")
        seeds = sorted(frame["seed"].unique())
        # as many rows of small shifts as seeds, so that equal values do not hide each other
        for number, (seed, colour) in enumerate(
            zip(seeds, sns.color_palette(PALETTE, len(seeds)), strict=True)
        ):
            values = frame[frame["seed"] == seed].set_index("method")["value"]
            shift = 0.16 * (number - (len(seeds) - 1) / 2)
            axis.plot(
                [values[name] for name in shown], [place + shift for place in range(len(shown))],
                _MARKERS[number % len(_MARKERS)], color=colour, markersize=6, label=f"seed {seed}",
            )  # fmt: skip
        means = frame.groupby("method")["value"].mean()
        for place, name in enumerate(shown):
            axis.plot([means[name]] * 2, [place - 0.35, place + 0.35], color="black", linewidth=1.5)
        axis.set(yticks=range(len(shown)), yticklabels=[names[name] for name in shown], xlabel=label)
        axis.set_ylim(len(shown) - 0.5, -0.5)
        axis.grid(visible=False, axis="y")
        figure.legend(loc="outside lower center", ncols=min(len(seeds), 5), frameon=False)
        figure.suptitle(title, fontsize=12)
    return figure
