"""What the page on Table V of the FedCKA paper shows: see ``fedlib.experiments.fedcka_footprint``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from fedlib.report.figures import PALETTE, WIDTH, style

COLUMNS = {
    "shared_share": ("parameters shared, %", 100.0, 1),
    "upload_bytes": ("sent, kB", 1e-3, 1),
    "mask_bytes": ("of these the mask, bytes", 1.0, 0),
    "modelled_bytes": ("model, kB", 1e-3, 1),
    "modelled_mask_bytes": ("of these the mask, bytes", 1.0, 0),
}
_MARKERS = ("o", "s", "^", "v", "D", "P", "X", "*", "<", ">", "d", "p")


def measured(rows: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Return what a client sends in a round, in words and units of ``COLUMNS``: mean over seeds, one row a method.

    Columns: shared parameters, bytes sent, the mask's part of them, and all bytes relative to FedAvg's.

    Args:
        rows: of ``uploads``, with one name for each method.
        names: labels of the methods; others are left out.
    """
    table = _means(rows, names)
    columns = ("shared_share", "upload_bytes", "mask_bytes")
    return _cells(table, columns).assign(**{"relative to FedAvg": _relative(table["upload_bytes"])})


def modelled(rows: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Return the first-order model beside what was measured; arguments as ``measured``."""
    table = _means(rows, names)
    cells = _cells(table, ("modelled_bytes", "modelled_mask_bytes"))
    more = 100 * (table["upload_bytes"] / table["modelled_bytes"] - 1)
    return cells.assign(
        **{
            "relative to FedAvg": _relative(table["modelled_bytes"]),
            "measured above the model, %": more.map("{:+.1f}".format),
        }
    )


def against_upload(
    rows: pd.DataFrame, scores: pd.DataFrame, names: Mapping[str, str], *, label: str, title: str
) -> Figure:
    """Draw a score against the upload of a client in a round: means over seeds, one standard deviation as bars.

    Args:
        rows: of ``uploads``, with one name for each method.
        scores: rows with seed, method and value.
        names: labels of the methods in the order of the legend.
        label: of the score.
        title: what the figure says.
    """
    sent = rows[rows["metric"] == "upload_bytes"]
    base = sent.loc[sent["method"] == "fedavg", "value"].mean()
    x = sent.groupby("method")["value"].agg(["mean", "std"]) / base
    y = scores.groupby("method")["value"].agg(["mean", "std"])
    shown = [name for name in names if name in x.index and name in y.index]
    colours = sns.color_palette(PALETTE, len(shown))
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.8), layout="constrained")
        for name, marker, colour in zip(shown, _MARKERS, colours, strict=False):
            axis.errorbar(
                x.loc[name, "mean"], y.loc[name, "mean"], xerr=x.loc[name].fillna(0)["std"],
                yerr=y.loc[name].fillna(0)["std"], fmt=marker, color=colour, markersize=8, capsize=2,
                elinewidth=1, label=names[name],
            )  # fmt: skip
        axis.axvline(1.0, color="#888888", linewidth=1, linestyle=":")
        axis.set(xlabel="upload of a client in a round, relative to FedAvg", ylabel=label)
        axis.margins(0.08)
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
        figure.suptitle(title, fontsize=12)
    return figure


def _means(rows: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    table = rows.pivot_table("value", "method", "metric")
    return table.loc[[name for name in names if name in table.index]].rename(index=names)


def _cells(table: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    cells = {}
    for column in columns:
        heading, scale, digits = COLUMNS[column]
        cells[heading] = (table[column] * scale).map(lambda value, n=digits: f"{value:.{n}f}")
    return pd.DataFrame(cells).rename_axis("method")


def _relative(column: pd.Series) -> pd.Series:
    return (column / column["FedAvg"]).map("{:.3f}".format)
