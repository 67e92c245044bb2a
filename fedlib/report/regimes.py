"""When tracking helps and when the few samples that remain are the better source: tables, a figure, a finding."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from fedlib.report.figures import PALETTE, WIDTH, style
from fedlib.report.sides import MIN_SEEDS

FEW = 3  # "two or three samples"


def gain_over_ratio(frame: pd.DataFrame, *, gain: str, label: str, title: str) -> Figure:
    """Draw a gain over NCM re-estimation against the noise-to-drift ratio q, one point a departure.

    Args:
        frame: of ``mpt.gain_and_ratio``.
        gain: column of the vertical axis.
        label: what it is.
        title: what the figure says.
    """
    frame = by_regime(frame, left=False)
    names = list(frame["regime"].cat.categories)
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.6), layout="constrained")
        for colour, marker, name in zip(sns.color_palette(PALETTE, len(names)), cycle("o^sDvX"), names):
            part = frame[frame["regime"] == name]
            axis.scatter(
                part["q"], part[gain], color=[colour], marker=marker, s=42, edgecolor="white",
                linewidth=0.5, label=name,
            )  # fmt: skip
        axis.axhline(0, color="#555555", linewidth=1)
        axis.axvline(1, color="#555555", linewidth=1, linestyle=":")
        axis.annotate(
            "noise = what the prediction misses", (1.01, 0.98), xycoords=("data", "axes fraction"), rotation=90,
            ha="left", va="top", fontsize=8, color="#333333",
        )  # fmt: skip
        axis.set(xlabel="noise-to-drift ratio q", ylabel=label)
        handles, names = axis.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False)
        figure.suptitle(title, fontsize=12)
    return figure


def helped(frame: pd.DataFrame) -> pd.DataFrame:
    """Return, for each regime, the mean q and in how many departures tracking gained.

    Args:
        frame: of ``mpt.gain_and_ratio``.

    Rows: regime; columns: mean q, and for MPT and our extension the mean gain and "k of n" departures with a gain
    above zero.
    """
    rows = []
    for regime, part in by_regime(frame).groupby("regime", observed=True):
        row = {"regime": regime, "mean q": f"{part['q'].mean():.2f}"}
        for column, name in (("gain", "MPT"), ("gain_full_space", "full-space (ours)")):
            row[f"gain, {name}"] = f"{part[column].mean():+.3f}"
            row[f"above 0, {name}"] = f"{int((part[column] > 0).sum())} of {len(part)}"
        rows.append(row)
    return pd.DataFrame(rows).set_index("regime")


def by_regime(rows: pd.DataFrame, *, left: bool = True) -> pd.DataFrame:
    """Return the rows with a column ``regime``: noise, departure and remaining fraction in words, in their order.

    What is the same in all rows is not named, apart from the noise.

    Args:
        rows: with noise, departed (last round of the vehicle) and remaining.
        left: name the remaining fraction.
    """
    columns = ["noise", "departed", "lr", *(["remaining"] if left else [])]
    found = set(rows[columns].itertuples(index=False, name=None))
    keys = sorted(found, key=lambda key: (-key[1], *key))
    words = {"noise": "noise {:g}", "departed": "departure after round {}", "lr": "step {:g}"}
    words["remaining"] = "{:.3g} % left"
    named_columns = [name for name in columns if name in ("noise", "remaining") or rows[name].nunique() > 1]
    names = {}
    for key in keys:
        values = dict(zip(columns, key, strict=True))
        values["remaining"] = 100 * values.get("remaining", 0)
        names[key] = ", ".join(words[name].format(values[name]) for name in named_columns)
    named = [names[key] for key in rows[columns].itertuples(index=False, name=None)]
    return rows.assign(regime=pd.Categorical(named, list(names.values()), ordered=True))


def few_samples(gains: pd.DataFrame) -> str:
    """Return in words where plain averaging of the remaining samples beats MPT: what a reader must know first.

    A setting is a rare class under a regime; it counts for one side where that side is ahead in all its
    repetitions, of which it needs at least three.

    Args:
        gains: of ``mpt.gain_and_ratio``.
    """
    settings = _settings(gains)
    few = settings[(settings["samples"] <= FEW) & (settings["seeds"] >= MIN_SEEDS)]
    lost, won = few[few["most"] < 0], few[few["least"] > 0]
    below, above = gains[gains["q"] < 1], gains[gains["q"] >= 1]
    parts = [
        f"Averaging at most {FEW} samples that are left is better than MPT in every "
        f"repetition in {len(lost)} of {len(few)} settings"
    ]
    if len(lost):
        parts[0] += " (" + "; ".join(map(_line, lost.itertuples())) + ")"
    parts[0] += f", worse in every repetition in {len(won)}."
    for part, words in ((below, "below"), (above, "above")):
        if len(part):
            ahead = int((part["gain"] < 0).sum())
            parts.append(
                f"With the noise-to-drift ratio {words} one it is ahead in {ahead} of {len(part)} departures, "
                f"whatever the number of samples (mean gain of MPT {part['gain'].mean():+.3f})."
            )
    return " ".join(parts).replace("-0.", "−0.")


def _settings(gains: pd.DataFrame) -> pd.DataFrame:
    keys = ["rare_class", "noise", "departed", "lr", "remaining"]
    found = gains.groupby(keys).agg(
        samples=("samples", "max"), seeds=("seed", "nunique"), q=("q", "mean"), mean=("gain", "mean"),
        least=("gain", "min"), most=("gain", "max"),
    )  # fmt: skip
    return found.reset_index()


def _line(row: Any) -> str:
    noise = f", pixel noise {row.noise:g}" if row.noise else ""
    return (
        f"class {row.rare_class}, departure after round {row.departed}, step size {row.lr:g}{noise}: "
        f"q {row.q:.2f}, F1 of MPT {row.mean:+.3f}"
    )


def rank_correlation(frame: pd.DataFrame, one: str, other: str) -> pd.DataFrame:
    """Return Spearman's rank correlation of two columns within each seed: columns seed, value.

    A seed with fewer than three rows has no correlation and is left out.
    """
    found = [
        (seed, float(part[one].rank().corr(part[other].rank())))
        for seed, part in frame.groupby("seed")
        if len(part) > 2
    ]
    return pd.DataFrame(found, columns=["seed", "value"]).replace([np.inf, -np.inf], np.nan).dropna()
