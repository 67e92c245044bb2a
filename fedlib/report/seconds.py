"""What the page on training time shows: see ``fedlib.experiments.mpt.timing`` and ``server_scaling``."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from fedlib.report.figures import PALETTE, WIDTH, style
from fedlib.report.tables import mean_sd
from fedlib.report.tracking import labelled

_COLUMNS = {
    "client_seconds": "vehicles",
    "server_seconds": "server",
    "extra_seconds": "together",
    "round_seconds": "training of the round",
}


def milliseconds(rows: pd.DataFrame, digits: int = 1) -> pd.DataFrame:
    """Return "mean ± sd" over seeds in milliseconds: one row for each method, columns vehicles to round.

    Args:
        rows: of ``mpt.timing``.
        digits: decimals.
    """
    named = labelled(rows).assign(what=rows["metric"].map(_COLUMNS), value=1000 * rows["value"])
    return mean_sd(named, by="label", columns="what", digits=digits)[list(_COLUMNS.values())].rename_axis(
        "method"
    )


def share_of_round(rows: pd.DataFrame, method: str, metric: str) -> float:
    """Return a method's seconds as a share of the training of a round, mean over seeds.

    Args:
        rows: of ``mpt.timing``.
        method: name.
        metric: ``client_seconds``, ``server_seconds`` or ``extra_seconds``.
    """
    own = rows[rows["method"] == method].pivot_table("value", "seed", "metric")
    return float((own[metric] / own["round_seconds"]).mean())


def beside_scores(rows: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of ``mpt.timing`` and the scores of the same methods in one frame."""
    timed = rows.assign(phase="after")
    return pd.concat([timed, scores[scores["method"].isin(set(rows["method"]))]], ignore_index=True)


def against_length(rows: pd.DataFrame, *, order: Sequence[str], title: str) -> Figure:
    """Draw milliseconds against the length of the features, both axes logarithmic, one line for each form.

    Args:
        rows: of ``mpt.server_scaling``.
        order: forms in the order of the legend.
        title: what the figure says.
    """
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.6), layout="constrained")
        sns.lineplot(
            data=rows.assign(value=1000 * rows["value"]), x="d", y="value", hue="form", style="form",
            hue_order=order, style_order=order, markers=True, errorbar="sd", palette=PALETTE, ax=axis,
        )  # fmt: skip
        lengths = sorted(rows["d"].unique())
        axis.set(
            xscale="log", yscale="log", xlabel="length of the features d", ylabel="time of the server, ms"
        )
        axis.set_xticks(lengths, [f"{d:,}" for d in lengths])
        axis.minorticks_off()
        handles, names = axis.get_legend_handles_labels()
        if legend := axis.get_legend():
            legend.remove()
        figure.legend(handles, names, loc="outside lower center", ncols=6, frameon=False)
        figure.suptitle(title, fontsize=12)
    return figure
