"""Pictures of class Gaussians and features in the plane, for the chapter on variational proxies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlib.report.figures import PALETTE, WIDTH, style

_MARKERS = "osD^vP*X"
_MOST_POINTS = 200  # of a class; more hide each other


@dataclass(frozen=True)
class Plane:
    """What one panel shows.

    Attributes:
        features: (n, 2).
        labels: (n,), classes from 0.
        mean: of the Gaussian of each class (C, 2); none are drawn if it is None.
        tril: its Cholesky factor (C, 2, 2); with None, the means are drawn as points.
    """

    features: np.ndarray
    labels: np.ndarray
    mean: np.ndarray | None = None
    tril: np.ndarray | None = None


def planes(panels: Mapping[str, Plane], *, title: str, reach: float = 2.4) -> Figure:
    """Draw panels side by side: features as points, Gaussians as ellipses of two standard deviations.

    Args:
        panels: by title.
        title: what the figure says.
        reach: the axes go from -reach to reach.
    """
    with style():
        figure, axes = plt.subplots(
            1, len(panels), figsize=(WIDTH, WIDTH / len(panels) + 0.6), squeeze=False, layout="constrained"
        )
        for axis, (name, plane) in zip(axes[0], panels.items(), strict=True):
            _draw(axis, plane)
            axis.set(title=name, xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xlabel="$z_1$")
        axes[0][0].set_ylabel("$z_2$")
        figure.suptitle(title, fontsize=12)
    return figure


def _draw(axis: Axes, plane: Plane) -> None:
    classes = range(int(plane.labels.max()) + 1)
    turn = np.linspace(0, 2 * np.pi, 100)
    circle = np.stack([np.cos(turn), np.sin(turn)])  # (2, 100)
    axis.plot(*circle, color="#999999", linewidth=0.8)
    for c, colour in zip(classes, sns.color_palette(PALETTE, len(classes)), strict=True):
        own = plane.features[plane.labels == c][:_MOST_POINTS]
        axis.plot(*own.T, _MARKERS[c % len(_MARKERS)], color=colour, markersize=3, alpha=0.5)
        if plane.mean is None:
            continue
        axis.plot(*plane.mean[c], "+", color="black", markersize=9)
        if plane.tril is not None:
            axis.plot(*(plane.mean[c][:, None] + 2 * plane.tril[c] @ circle), color=colour, linewidth=1.6)
