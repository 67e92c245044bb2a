"""What the pages on a departing vehicle derive from results: see ``fedlib.experiments.mpt.preliminary``."""

from __future__ import annotations

import pandas as pd

CURVES = ("no departure: ncm", "no departure: head", "ncm", "oracle", "remaining", "frozen", "head")
"""Curves of ``rare_f1_curves``, best first; ``ncm`` is the nearest class mean before the departure."""


def rare_f1_curves(results: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of rare-class F1 with two columns more.

    ``curve`` is one of ``CURVES``: the readout, with its condition where nobody leaves. ``left`` is the remaining
    fraction in words.
    """
    rows = results[results["metric"] == "rare_f1"]
    condition = rows["condition"].map({"departure": "", "no-departure": "no departure: "})
    return rows.assign(curve=condition + rows["readout"], left=left_in_words(rows["remaining"]))


def loss_after_departure(results: pd.DataFrame, rounds: int = 25) -> pd.DataFrame:
    """Return how much rare-class F1 a departure costs, averaged over the first ``rounds`` rounds after it.

    The F1 of the run without departure (nearest class mean) minus that of the mean of the remaining samples, with
    the same seed: positive is a loss (MPT, section III).

    Columns: seed, rare_class, left (the remaining fraction in words), value.
    """
    rows = results[(results["metric"] == "rare_f1") & (results["phase"] == "after")]
    rows = rows[rows["round"] < rows["round"].min() + rounds]
    keys = ["seed", "rare_class", "remaining"]
    staying = rows[(rows["condition"] == "no-departure") & (rows["readout"] == "ncm")]
    leaving = rows[(rows["condition"] == "departure") & (rows["readout"] == "remaining")]
    loss = staying.groupby(keys)["value"].mean() - leaving.groupby(keys)["value"].mean()
    frame = loss.rename("value").reset_index()
    return frame.assign(left=left_in_words(frame["remaining"])).drop(columns="remaining")


def accuracy_and_recall(results: pd.DataFrame) -> pd.DataFrame:
    """Return overall accuracy and rare-class recall of the run with departure, as named curves.

    ``curve`` says readout (head, or prototypes: ``ncm`` before and ``remaining`` after the departure) and measure.
    """
    measures = {"accuracy": "accuracy, all classes", "rare_recall": "recall, rare class"}
    readouts = {"head": "head", "ncm": "prototypes", "remaining": "prototypes"}
    rows = results[
        (results["condition"] == "departure")
        & results["readout"].isin(list(readouts))
        & results["metric"].isin(list(measures))
    ]
    return rows.assign(curve=rows["readout"].map(readouts) + ": " + rows["metric"].map(measures))


def left_in_words(remaining: pd.Series) -> pd.Categorical:
    """Return fractions as text that sorts by size: ``2 % remain``."""
    fractions = sorted(remaining.unique())
    categories = [f"{100 * fraction:g} % remain" for fraction in fractions]
    return pd.Categorical(
        remaining.map(dict(zip(fractions, categories, strict=True))), categories, ordered=True
    )
