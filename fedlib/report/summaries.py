"""Quantities that pages derive from tidy results: pure functions from frame to frame."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fedlib.errors import InputError


def last_rounds(frame: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return the rows of the last ``count`` rounds.

    Raises:
        InputError: if ``count`` is below 1.
    """
    if count < 1:
        raise InputError(f"count is {count}; allowed: at least 1")
    return frame[frame["round"] > frame["round"].max() - count]


def rounds_to(frame: pd.DataFrame, level: float, by: str) -> pd.DataFrame:
    """Return for each ``by`` and seed the first round whose ``value`` is at least ``level``.

    A seed that never gets there has no row; columns: ``by``, seed, value (the round).
    """
    reached = frame[frame["value"] >= level]
    return reached.groupby([by, "seed"])["round"].min().rename("value").reset_index()


def unsteadiness(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return the standard deviation of ``value`` over the second half of the rounds, for each seed.

    Columns: ``by``, seed, value; no row where fewer than two rounds are left.
    """
    half = frame[frame["round"] > frame["round"].max() / 2]
    return half.groupby([*by, "seed"])["value"].std().dropna().reset_index()


def client_kilobytes(ledger: pd.DataFrame) -> pd.DataFrame:
    """Return what one client sends (up) and receives (down) in a round, in kilobytes (1,000 bytes).

    Args:
        ledger: of a trajectory; the mean over its rounds and clients is taken.

    Rows: the kinds of message that occur; columns: down, up.
    """
    sent = ledger[ledger["messages"] > 0]
    sums = sent.groupby(["kind", "direction"])[["bytes", "messages"]].sum()
    return (sums["bytes"] / sums["messages"] / 1000).unstack("direction").fillna(0.0).round(2)
