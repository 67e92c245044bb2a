"""Measuring one comparison rule: estimate both sides and their difference over seeds, in every group."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from fedlib.report.register import Frozen, Rule
from fedlib.report.sides import ROUNDING, Unmeasurable, difference, name_of, needed_seeds, text_of


class Estimate(Frozen):
    """A mean over seeds with its spread.

    Attributes:
        mean: mean over seeds.
        sd: sample standard deviation over seeds, None for one seed.
        n: number of seeds.
        low: lower end of the two-sided 95 % t-interval of the mean, None for one seed.
        high: upper end.
    """

    mean: float
    sd: float | None
    n: int
    low: float | None
    high: float | None


class Group(Frozen):
    """The comparison in one group of a rule.

    Attributes:
        name: the group's column values, for example ``rare_class 5, remaining 0.1``; empty without groups.
        key: the values alone.
        against: the values that name the other side where it has several, for example ``method ccvr``.
        ours: our side.
        theirs: the other side; None where ours is compared with a constant.
        effect: ours minus the other side (or the constant), paired by seed; divided by it for a relative rule.
        holds: whether the effect has the claimed direction; None where the rule only compares a value.
    """

    name: str
    key: tuple[str, ...] = ()
    against: str
    ours: Estimate
    theirs: Estimate | None
    effect: Estimate
    holds: bool | None


def estimate(values: Iterable[float]) -> Estimate:
    """Return mean, sample standard deviation and 95 % t-interval of one value per seed.

    >>> estimate([1.0, 2.0, 3.0]).mean
    2.0
    """
    array = np.asarray(list(values), dtype=np.float64)
    mean = float(array.mean())
    if len(array) < 2:
        return Estimate(mean=mean, sd=None, n=len(array), low=None, high=None)
    sd = float(array.std(ddof=1))
    half = float(stdtrit(len(array) - 1, 0.975)) * sd / math.sqrt(len(array))
    return Estimate(mean=mean, sd=sd, n=len(array), low=mean - half, high=mean + half)


@dataclass(frozen=True)
class Outcome:
    """What came out of a rule.

    Attributes:
        groups: the comparison in every group, ordered by the groups' values.
        ours: our side over all groups.
        left_out: what was not judged because too few seeds have it, in words; empty where all was.
        not_compared: what the rule compares with and the results lack, in words; empty where they have all.
    """

    groups: list[Group]
    ours: Estimate
    left_out: str
    not_compared: str


def compare(rule: Rule, table: pd.DataFrame) -> Outcome:
    """Return the outcome of a rule from its two sides.

    Groups of ``over`` that fewer than three seeds have are left out, and named.

    Args:
        rule: what to compare.
        table: from ``sides``.

    Raises:
        Unmeasurable: too few seeds, or values that are not finite.
    """
    named = [*rule.over, *(rule.against_each if rule.against is not None else ())]
    merged = table.assign(effect=difference(table["ours"], table["theirs"]))
    if rule.relative:
        merged["effect"] /= merged["theirs"].abs().replace(0.0, np.nan)
    if not np.isfinite(merged[["ours", "theirs", "effect"]].to_numpy()).all():
        raise Unmeasurable(f"'{rule.says}': some results are not finite numbers")
    notes, absent = (
        list(table[name].iloc[:1]) if name in table else [] for name in ("left_out", "not_compared")
    )
    merged, rare = _groups_with_seeds(rule, merged, named)
    groups = [((), merged)] if not named else list(merged.groupby(named, sort=True))
    measured = [_group(rule, key, part) for key, part in groups]
    ours_by_seed = merged.groupby("seed")["ours"].agg(["mean", "size"])
    whole = ours_by_seed["size"] == ours_by_seed["size"].max()  # seeds that have every group
    return Outcome(
        measured, estimate(ours_by_seed["mean"][whole]), "; ".join([*notes, *rare]), "".join(absent)
    )


def _groups_with_seeds(rule: Rule, table: pd.DataFrame, named: list[str]) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows of the groups of ``over`` that enough seeds have, whatever they are compared with, and the
    names of the others."""
    if not rule.over:
        return table, []
    few = table.groupby(named)["seed"].transform("nunique") < needed_seeds(rule)
    lost = table.loc[few, list(rule.over)].drop_duplicates().sort_values(list(rule.over))
    names = [name_of(rule.over, key) for key in lost.itertuples(index=False, name=None)]
    keep = ~few.groupby([table[name] for name in rule.over]).transform("any")
    return (table[keep], names) if keep.any() else (table, [])


def _group(rule: Rule, key: tuple[object, ...], part: pd.DataFrame) -> Group:
    if len(part) < needed_seeds(rule):
        raise Unmeasurable(f"too few seeds: {len(part)}, and a verdict needs {needed_seeds(rule)}")
    effect = estimate(part["effect"])
    split = len(rule.over)
    return Group(
        name=name_of(rule.over, key[:split]),
        key=tuple(map(text_of, key[:split])),
        against=name_of(rule.against_each, key[split:]),
        ours=estimate(part["ours"]),
        theirs=None if rule.against is None else estimate(part["theirs"]),
        effect=effect,
        holds=_holds(rule, effect, part["effect"]),
    )


def _holds(rule: Rule, effect: Estimate, per_seed: pd.Series) -> bool | None:
    if rule.direction is None:
        return None
    if rule.deterministic:  # no noise to allow for: every repetition must agree
        low, high = float(per_seed.min()), float(per_seed.max())
    else:
        assert effect.low is not None
        assert effect.high is not None
        low, high = effect.low, effect.high
    least = ROUNDING * max(1.0, abs(low), abs(high), rule.margin)
    if rule.direction == ">":
        return low - rule.margin > least
    if rule.direction == "<":
        return high + rule.margin < -least
    return low + rule.margin > least and high - rule.margin < -least
