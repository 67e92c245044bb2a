"""What the MPT pages derive from results on a tracked prototype, and two figures of their own."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedlib import models
from fedlib.experiments.mpt_replay import View
from fedlib.federation.model_state import model_state
from fedlib.methods.mpt.trackers import METHODS, TrackerOptions
from fedlib.report.departure import left_in_words
from fedlib.report.figures import PALETTE, WIDTH, style
from fedlib.report.tables import mean_sd

PARTS = {
    "static": "static: residual of the departure",
    "predicted": "predicted: transported",
    "measured": "measured: few samples",
    "combined": "combined: MPT",
    "barycentric": "barycentric: fixed weights",
    "direct": "direct: few samples",
}
"""Names of the parts of the reconstruction in figures."""
POINTS = ("remaining class", "oracle", "in-span part", "stored residual", "predicted", "measured", "MPT")
"""Kinds of point in ``span_points``; all but the first two are MPT's."""

_MARKERS = dict(zip(POINTS, ("o", "*", "s", "X", "^", "v", "D"), strict=True))
_COST_HATCH, _SCORE_HATCH = "//", ""


# --- tables ----------------------------------------------------------------------------------------------------


def labelled(rows: pd.DataFrame, names: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Return the rows with a column ``label``: the method's name in tables and figures.

    Args:
        rows: with the column ``method``.
        names: takes precedence over the registry's labels, for example ``PARTS``.
    """
    known = {name: line.label for name, line in METHODS.items()} | dict(names or {})
    return rows.assign(label=rows["method"].map(lambda name: known.get(name, name)))


def labels(methods: Sequence[str]) -> list[str]:
    """Return the names of methods in tables and figures, in the same order."""
    return [METHODS[name].label for name in methods]


def after(rows: pd.DataFrame, metric: str, share: float = 1.0) -> pd.DataFrame:
    """Return the rows of a metric after the departure, of the last ``share`` of those rounds."""
    found = rows[(rows["metric"] == metric) & (rows["phase"] == "after")]
    if found.empty:
        return found
    first, last = found["round"].min(), found["round"].max()
    return found[found["round"] > last - max(1, round(share * (last - first + 1)))]


def costs(rows: pd.DataFrame, model_bytes: int) -> pd.DataFrame:
    """Return what one vehicle sends and receives in a round, by method label.

    Up and down in kilobytes of 1,000 bytes, model included; per cent that the upload adds to FedAvg's; numbers
    beside the model, as sent and as the method's formula counts them.

    Args:
        rows: with the metrics uplink_bytes, uplink_floats, uplink_formula and downlink_bytes.
        model_bytes: size of the model's message.
    """
    wanted = ["uplink_bytes", "uplink_floats", "uplink_formula", "downlink_bytes"]
    mean = labelled(rows[rows["metric"].isin(wanted)]).pivot_table("value", "label", "metric")
    return pd.DataFrame(
        {
            "up, kB": (mean["uplink_bytes"] / 1000).map("{:.1f}".format),
            "down, kB": (mean["downlink_bytes"] / 1000).map("{:.1f}".format),
            "added to the upload, %": (100 * (mean["uplink_bytes"] / model_bytes - 1)).map("{:.1f}".format),
            "numbers beside the model": mean["uplink_floats"].round().astype(int),
            "by the formula": mean["uplink_formula"].round().astype(int),
        }
    ).rename_axis("method")


def gap_to_oracle(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how far the rare F1 of each method lies below the oracle's in the same round, on the same backbone.

    Args:
        rows: of ``mpt.headline``, with the oracle.

    Columns: those that tell the rounds apart, method, value (positive is a loss).
    """
    f1 = after(rows, "rare_f1")
    keys = [name for name in f1.columns if name not in ("method", "value")]
    best = f1[f1["method"] == "oracle"].set_index(keys)["value"].rename("oracle")
    both = f1[f1["method"] != "oracle"].join(best, on=keys)
    return both.assign(value=both["oracle"] - both["value"]).drop(columns="oracle")


def over_fractions(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return "mean ± sd" over seeds of several quantities (column ``what``), one column for each fraction."""
    rows = pd.concat(parts)
    return mean_sd(rows.assign(left=left_in_words(rows["remaining"])), by="what", columns="left", digits=2)


def score_table(found: Mapping[str, Mapping[str, float]], digits: int = 3) -> pd.DataFrame:
    """Return F1, precision and recall of the rare class and overall accuracy, one row for each prototype.

    Args:
        found: name and scores, see ``mpt_scenario.scores``.
        digits: decimals.
    """
    columns = {
        "rare_f1": "rare F1",
        "rare_precision": "rare precision",
        "rare_recall": "rare recall",
        "accuracy": "accuracy",
    }
    table = pd.DataFrame.from_dict(dict(found), orient="index")[list(columns)].rename(columns=columns)
    return table.rename_axis("prototype").map(f"{{:.{digits}f}}".format)


def in_words(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with "yes" and "no" for truth values and a dash for empty text."""
    words = {True: "yes", False: "no"}
    return table.map(lambda cell: words[bool(cell)] if isinstance(cell, bool | np.bool_) else cell or "–")


def added_by_backbone(names: Sequence[str], *, num_classes: int, image_size: int) -> pd.DataFrame:
    """Return what MPT and CCVR add to the upload of a vehicle that holds all classes; arithmetic, no run.

    Rows: backbone; columns: its features, numbers in its model, and per cent of these that the class statistics
    of MPT-lite, MPT and CCVR add.

    Args:
        names: backbones.
        num_classes: C.
        image_size: side of the colour images in pixels.
    """
    rows = {}
    for name in names:
        with warnings.catch_warnings():  # a package behind one backbone misses its progress bars
            warnings.simplefilter("ignore")
            model = models.build(name, num_classes=num_classes, in_channels=3, image_size=image_size, seed=0)
        size = sum(t.numel() for t in model_state(model).values())
        dim = model.feature_dim
        trackers = {key: METHODS[key].make(TrackerOptions()) for key in ("mpt_lite", "mpt", "ccvr")}
        rows[name] = {"features": dim, "numbers in the model": size} | {
            f"{METHODS[key].label} adds, %": f"{100 * tracker.floats_up(num_classes, dim, 0) / size:.1f}"
            for key, tracker in trackers.items()
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("backbone")


# --- figures ---------------------------------------------------------------------------------------------------


def cost_beside_f1(
    rows: pd.DataFrame, *, cost: str, cost_label: str, title: str, order: Sequence[str], scale: float = 1.0
) -> Figure:
    """Draw a cost of each method beside its rare-class F1 after the departure, as two columns of bars.

    Args:
        rows: with ``method``, ``seed``, ``metric``, ``value``; rare F1 with ``phase``.
        cost: metric of the left bars.
        cost_label: what it is, with its unit.
        title: what the figure says.
        order: methods from top to bottom; those without a cost keep an empty place.
        scale: factor on the cost, for its unit.
    """
    price = rows[rows["metric"] == cost].assign(value=lambda part: part["value"] * scale)
    parts = [(price, cost_label, _COST_HATCH), (after(rows, "rare_f1"), "F1 of the rare class", _SCORE_HATCH)]
    names = labels(order)
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 3.4), sharey=True, layout="constrained")
        colours = sns.color_palette(PALETTE)
        for place, (axis, (part, label, hatch)) in enumerate(zip(axes, parts, strict=True)):
            per_seed = labelled(part).groupby(["label", "seed"], as_index=False)["value"].mean()
            sns.barplot(
                data=per_seed, x="value", y="label", order=names, errorbar="sd", capsize=0.2, ax=axis,
                color=colours[place], err_kws={"linewidth": 1.2},
            )  # fmt: skip
            for bar in axis.patches:
                bar.set(hatch=hatch, edgecolor="white")
            axis.set(xlabel=label, ylabel="")
            axis.grid(visible=False, axis="y")
        axes[1].set_xlim(0, 1)
        figure.suptitle(title, fontsize=12)
    return figure


def span_points(views: Mapping[int, View], stored: Tensor) -> pd.DataFrame:
    """Return where MPT's parts lie beside the affine span of the remaining prototypes, in two dimensions.

    Of each round: x is the first principal component of the remaining prototypes, which runs inside their affine
    span; y is the direction in which the oracle's prototype leaves the span. On the span y is 0. Both are in
    units of the spread of the remaining prototypes, the root mean square distance to their mean.

    Columns: round, what (one of ``POINTS``), x, y.

    Args:
        views: by round, with the outcome of ``mpt``.
        stored: residual of the departure, (d,).
    """
    rows: list[tuple[int, str, float, float]] = []
    for number, view in views.items():
        basis, outcome = view.server.basis, view.outcomes["mpt"]
        frame = plane(basis, view.oracle)
        in_span = outcome.vectors["in_span"]
        found = [("remaining class", column) for column in basis.T] + [
            ("oracle", view.oracle),
            ("in-span part", in_span),
            ("stored residual", in_span + stored),
        ]
        found += [
            (k, in_span + outcome.vectors[k]) for k in ("predicted", "measured") if k in outcome.vectors
        ]
        if outcome.prototype is not None:
            found.append(("MPT", outcome.prototype))
        centre = basis.mean(dim=1)
        size = float((basis - centre[:, None]).square().sum(dim=0).mean().sqrt())
        for what, point in found:
            x, y = ((point - centre) @ frame / size).tolist()
            rows.append((number, what, x, y))
    return pd.DataFrame(rows, columns=["round", "what", "x", "y"])


def plane(basis: Tensor, oracle: Tensor) -> Tensor:
    """Return two orthonormal directions, (d, 2): along the affine span of the prototypes, and out of it.

    Args:
        basis: P, (d, M), float64, M >= 2.
        oracle: the rare prototype, (d,), not in the span.
    """
    centred = basis - basis.mean(dim=1, keepdim=True)
    directions, sizes, _ = torch.linalg.svd(centred, full_matrices=False)
    inside = directions[:, sizes > 1e-10 * sizes[0]]
    along = inside[:, 0] * (1 if float(inside[:, 0] @ centred[:, 0]) >= 0 else -1)
    v = oracle - basis.mean(dim=1)
    out = v - inside @ (inside.T @ v)
    return torch.stack([along, out / out.norm()], dim=1)


def span_picture(points: pd.DataFrame, *, title: str) -> Figure:
    """Draw ``span_points``: one panel for each round, the affine span as a line, residuals as dashes from it."""
    rounds = sorted(points["round"].unique())
    colours = dict(zip(POINTS, sns.color_palette(PALETTE, len(POINTS)), strict=True))
    colours["remaining class"] = (0.45, 0.45, 0.45)
    with style(**{"axes.grid": False}):
        figure, axes = plt.subplots(
            1,
            len(rounds),
            figsize=(WIDTH, 3.6),
            sharex=True,
            sharey=True,
            squeeze=False,
            layout="constrained",
        )
        for axis, number in zip(axes[0], rounds, strict=True):
            here = points[points["round"] == number]
            axis.axhline(0, color="#999999", linewidth=1)
            foot = here[here["what"] == "in-span part"].iloc[0]
            for what in POINTS:
                part = here[here["what"] == what]
                if what in ("stored residual", "predicted", "measured", "MPT") and len(part):
                    end = part.iloc[0]
                    axis.plot(
                        [foot["x"], end["x"]],
                        [foot["y"], end["y"]],
                        color=colours[what],
                        linewidth=1,
                        ls="--",
                    )
                axis.scatter(
                    part["x"], part["y"], marker=_MARKERS[what], color=[colours[what]], label=what,
                    s=110 if what == "oracle" else 42, zorder=3, edgecolor="white", linewidth=0.5,
                )  # fmt: skip
            axis.set(title=f"round {number}", xlabel="along the span")
        axes[0][0].set_ylabel("out of the span, towards the oracle")
        handles, names = axes[0][-1].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
        figure.suptitle(title, fontsize=12)
    return figure
