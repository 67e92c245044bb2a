"""Measuring one comparison rule on a tidy frame: select rows, reduce them per seed, estimate over seeds.

Everything that could make a comparison silently mean something else is refused here: a metric that is not there,
a filter that selects nothing, a condition that the rule neither fixes nor averages, unpaired seeds, rounds or
averaged results that differ between the sides or between seeds, the same measurement twice.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from fedlib.errors import InputError
from fedlib.report.register import Filter, Frozen, Rule, Window

MIN_SEEDS = 3
ROUNDING = 1e-12  # of two numbers' size (at least 1): a smaller difference is none
_COLUMNS = ("seed", "metric", "value")
_NOT_CONDITIONS = {"seed", "round", "metric", "value"}


class Unmeasurable(Exception):
    """The frame is sound but too small or too incomplete for a verdict; the message is the reason."""


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


def check_frame(frame: pd.DataFrame) -> None:
    """Refuse what is no tidy frame of results.

    Raises:
        InputError: no frame, no rows, columns missing, seeds that are no integers, values that are no numbers.
    """
    if not isinstance(frame, pd.DataFrame):
        raise InputError(f"results are {type(frame).__name__}; allowed: a pandas DataFrame, one number a row")
    if missing := [name for name in _COLUMNS if name not in frame.columns]:
        raise InputError(
            f"results lack the column {', '.join(missing)}; there are {', '.join(map(str, frame.columns))}"
        )
    if frame.empty:
        raise InputError("results have no rows")
    if not pd.api.types.is_integer_dtype(frame["seed"]):
        raise InputError(f"the column seed has type {frame['seed'].dtype}; allowed: integers")
    if not pd.api.types.is_numeric_dtype(frame["value"]) or pd.api.types.is_bool_dtype(frame["value"]):
        raise InputError(f"the column value has type {frame['value'].dtype}; allowed: numbers")


def measure(rule: Rule, frame: pd.DataFrame) -> tuple[list[Group], Estimate]:
    """Return the rule's comparison in every group, ordered by the groups' values, and our side over all groups.

    Args:
        rule: what to compare.
        frame: tidy results that passed ``check_frame``.

    Raises:
        InputError: the frame does not hold what the rule needs; the message names it.
        Unmeasurable: too few seeds or rounds, or values that are not finite.
    """
    return compare(rule, sides(rule, frame))


def sides(rule: Rule, frame: pd.DataFrame) -> pd.DataFrame:
    """Return both sides of a rule for every seed and group: all that its outcome depends on.

    Columns: ``seed``, the rule's ``over`` and ``against_each``, ``ours``, ``theirs``. Arguments and errors are
    those of ``measure``.
    """
    frame = frame.reset_index(drop=True)  # frames put together from several runs repeat their row labels
    ours = _side(rule, frame, rule.ours, rule.over)
    if rule.against is None:
        return ours.table.rename(columns={"value": "ours"}).assign(theirs=rule.reference)
    theirs = _side(rule, frame, rule.against, (*rule.over, *rule.against_each))
    _same_conditions(rule, ours, theirs)
    return _pair(rule, ours.table, theirs.table)


def compare(rule: Rule, table: pd.DataFrame) -> tuple[list[Group], Estimate]:
    """Return the outcome of a rule from its two sides; see ``measure``.

    Args:
        rule: what to compare.
        table: from ``sides``.

    Raises:
        Unmeasurable: too few seeds, or values that are not finite.
    """
    named = [*rule.over, *(rule.against_each if rule.against is not None else ())]
    merged = table.assign(effect=_difference(table["ours"], table["theirs"]))
    if rule.relative:
        merged["effect"] /= merged["theirs"].abs().replace(0.0, np.nan)
    if not np.isfinite(merged[["ours", "theirs", "effect"]].to_numpy()).all():
        raise Unmeasurable(f"'{rule.says}': some results are not finite numbers")
    groups = [((), merged)] if not named else list(merged.groupby(named, sort=True))
    measured = [_group(rule, key, part) for key, part in groups]
    ours_by_seed = merged.groupby("seed")["ours"].agg(["mean", "size"])
    whole = ours_by_seed["size"] == ours_by_seed["size"].max()  # seeds that have every group
    return measured, estimate(ours_by_seed["mean"][whole])


def _group(rule: Rule, key: tuple[object, ...], part: pd.DataFrame) -> Group:
    needed = 1 if rule.deterministic else MIN_SEEDS
    if len(part) < needed:
        raise Unmeasurable(f"too few seeds: {len(part)}, and a verdict needs {needed}")
    effect = estimate(part["effect"])
    split = len(rule.over)
    return Group(
        name=_name(rule.over, key[:split]),
        key=tuple(map(_text, key[:split])),
        against=_name(rule.against_each, key[split:]),
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


@dataclass(frozen=True)
class _Side:
    """One side of a rule.

    Attributes:
        filter: the column values of the side.
        rows: the rows of the frame that count.
        keys: ``seed`` and the columns that name a group; without those that these rows do not depend on.
        table: one ``value`` for each seed and group.
    """

    filter: Filter
    rows: pd.DataFrame
    keys: list[str]
    table: pd.DataFrame

    def members(self, columns: Sequence[str]) -> dict[tuple[object, ...], frozenset[tuple[object, ...]]]:
        """Return what each seed and group was made from: the values of ``columns`` that occur there."""
        return _members(self.rows, self.keys, columns)


def _side(rule: Rule, frame: pd.DataFrame, side: Filter, keys: tuple[str, ...]) -> _Side:
    ours = _select(rule, frame, _filters(rule, side), rule.rounds, keys)
    if rule.minus is None and rule.minus_rounds is None:
        return ours
    minus = _select(rule, frame, ours.filter | (rule.minus or {}), rule.minus_rounds or rule.rounds, keys)
    if not minus.rows.index.intersection(ours.rows.index).empty:
        raise Unmeasurable(f"'{rule.says}': too few rounds to tell the two periods apart")
    other_period = rule.minus_rounds is not None or bool({"phase", "round"} & set(rule.minus or {}))
    _same_members(rule, ours, minus, rule.pool if other_period else ("round", *rule.pool))
    table = _join(rule, ours.table, minus.table.rename(columns={"value": "minus"}))
    table["value"] = _difference(table["value"], table.pop("minus"))
    return replace(ours, table=table)


def _select(
    rule: Rule, frame: pd.DataFrame, fixed: Filter, window: Window | None, keys: tuple[str, ...]
) -> _Side:
    rows = _rows(frame, fixed)
    present = _present(rule, rows, keys)
    rows = _window(rule, rows, window, [*present, *(name for name in rule.pool if name in rows)])
    several = [name for name, wanted in fixed.items() if isinstance(wanted, tuple)]
    table = _reduce(rule, rows, fixed, present)
    _same_over_seeds(rule, rows, present, ["round", *rule.pool, *several])
    return _Side(fixed, rows, present, table)


def _filters(rule: Rule, side: Filter) -> Filter:
    metric: Filter = {} if rule.metric is None else {"metric": rule.metric}
    return metric | rule.where | side


def _rows(frame: pd.DataFrame, filters: Filter) -> pd.DataFrame:
    rows = frame
    for column, wanted in filters.items():
        if column not in frame.columns:
            raise InputError(
                f"results lack the column {column}; there are {', '.join(map(str, frame.columns))}"
            )
        allowed = wanted if isinstance(wanted, tuple) else (wanted,)
        match = _matches(rows[column], allowed)
        if not match.any():
            present = ", ".join(map(str, rows[column].dropna().unique()[:12])) or "none"
            chosen = ", ".join(f"{name} = {value}" for name, value in filters.items())
            raise InputError(f"no results with {chosen}: {column} is {present} there")
        rows = rows[match]
    if not np.isfinite(rows["value"].to_numpy(dtype=np.float64)).all():
        raise Unmeasurable("some results are not finite numbers")
    names = [name for name in rows.columns if name != "value"]
    if rows.duplicated(names).any():
        twice = rows[rows.duplicated(names)].iloc[0][names].dropna().to_dict()
        raise InputError(f"results hold one measurement twice: {twice}")
    return rows


def _matches(column: pd.Series, allowed: tuple[object, ...]) -> pd.Series:
    match = pd.Series(False, index=column.index)
    is_bool, is_number = pd.api.types.is_bool_dtype(column), pd.api.types.is_numeric_dtype(column)
    for value in allowed:
        if isinstance(value, bool) or is_bool:
            match |= (column == value) if isinstance(value, bool) and is_bool else False
        elif is_number and isinstance(value, int | float):
            match |= pd.Series(
                np.isclose(column.to_numpy(dtype=np.float64), value, rtol=1e-9), index=column.index
            )
        else:
            match |= column == value
    return match


def _window(rule: Rule, rows: pd.DataFrame, window: Window | None, runs: list[str]) -> pd.DataFrame:
    """Choose rounds for each setting on its own (their numbers of rounds may differ), all seeds together."""
    if window is None:
        return rows
    if "round" not in rows or rows["round"].isna().any():
        raise InputError("the rule counts rounds, and some results have none")
    settings = [rows[name] for name in runs if name != "seed"]
    rounds = rows["round"].groupby(settings, dropna=False) if settings else [((), rows["round"])]
    chosen = pd.concat([part.isin(window.choose(part)) for _, part in rounds]).reindex(rows.index)
    if not chosen.any():
        raise Unmeasurable("no results in the rounds that count")
    lost = _members(rows, runs, []).keys() - _members(rows[chosen], runs, []).keys()
    if lost:
        names = "; ".join(sorted(_name(runs, key) for key in lost)[:6])
        raise Unmeasurable(f"'{rule.says}': no results of {names} in the rounds that count")
    return rows[chosen]


def _present(rule: Rule, rows: pd.DataFrame, keys: tuple[str, ...]) -> list[str]:
    """Return ``seed`` and those of ``keys`` that the rows depend on."""
    present = ["seed"]
    for column in keys:
        if column not in rows.columns:
            raise InputError(
                f"results lack the column {column}; there are {', '.join(map(str, rows.columns))}"
            )
        empty = rows[column].isna()
        if empty.all():
            continue  # these results do not depend on it: they serve every group
        if empty.any():
            raise InputError(f"'{rule.says}': {column} is missing in some results and given in others")
        present.append(column)
    return present


def _members(
    rows: pd.DataFrame, keys: list[str], columns: Sequence[str]
) -> dict[tuple[object, ...], frozenset[tuple[object, ...]]]:
    values = rows[[*keys, *columns]].astype(object)
    found = defaultdict(set)
    for row in values.where(values.notna(), None).itertuples(index=False, name=None):  # None equals None
        found[row[: len(keys)]].add(row[len(keys) :])
    return {key: frozenset(members) for key, members in found.items()}


def _same_over_seeds(rule: Rule, rows: pd.DataFrame, keys: list[str], averaged: Iterable[str]) -> None:
    """Refuse seeds that are averages of different rounds or different members of what is averaged."""
    columns = [name for name in dict.fromkeys(averaged) if name in rows and name not in keys]
    for chosen in _each_and_all(columns):
        seeds = defaultdict(set)
        for (_, *group), members in _members(rows, keys, chosen).items():
            seeds[tuple(group)].add(members)
        if any(len(found) > 1 for found in seeds.values()):
            raise Unmeasurable(f"'{rule.says}': {' and '.join(chosen)} differs between seeds")


def _reduce(rule: Rule, rows: pd.DataFrame, fixed: Filter, present: list[str]) -> pd.DataFrame:
    free = {*fixed, *rule.pool, *rule.over, *rule.against_each, *_NOT_CONDITIONS}
    if "round" in rows:
        free.add("phase")  # says nothing that the round does not
    for column in rows.columns:
        if column not in free and rows[column].nunique() > 1:
            values = ", ".join(map(str, rows[column].unique()[:6]))
            raise InputError(f"'{rule.says}': the rule neither fixes nor averages {column} ({values})")
    if rule.statistic == "mean":
        return (
            rows.groupby(present, as_index=False)["value"]
            .mean()
            .assign(value=lambda t: t["value"] * rule.factor)
        )
    if "round" not in rows or rows["round"].isna().any():
        raise InputError("the rule needs a slope over rounds, and some results have none")
    slopes = []
    for key, part in rows.groupby(present):
        x = part["round"].to_numpy(dtype=np.float64)
        if len(np.unique(x)) < 2:
            raise Unmeasurable(f"'{rule.says}': a slope needs two rounds")
        centred = x - x.mean()
        y = _difference(part["value"], part["value"].mean()).to_numpy(dtype=np.float64)
        slopes.append((*key, rule.factor * float(centred @ y / (centred @ centred))))
    return pd.DataFrame(slopes, columns=[*present, "value"])


def _pair(rule: Rule, ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    shared = [name for name in rule.over if name in ours]
    if missing := [name for name in rule.over if name not in ours]:
        raise InputError(f"'{rule.says}': our results have no {', '.join(missing)}")
    left = ours.rename(columns={"value": "ours"})
    right = theirs.rename(columns={"value": "theirs"})
    keys = ["seed", *(name for name in shared if name in right)]
    _same_keys(rule, left, right, keys)
    return left.merge(right, on=keys, how="inner")


def _join(rule: Rule, table: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    keys = [name for name in other.columns if name != "minus"]
    _same_keys(rule, table, other, keys)
    return table.merge(other, on=keys, how="inner")


def _same_keys(rule: Rule, left: pd.DataFrame, right: pd.DataFrame, keys: list[str]) -> None:
    ours = set(map(tuple, left[keys].itertuples(index=False)))
    theirs = set(map(tuple, right[keys].itertuples(index=False)))
    if lone := sorted(map(str, (_name(tuple(keys), key) for key in ours ^ theirs))):
        raise InputError(f"'{rule.says}': no pair for {'; '.join(lone[:6])}")


def _same_conditions(rule: Rule, ours: _Side, theirs: _Side) -> None:
    """Refuse sides that differ in something that the rule does not compare."""
    _same_members(rule, ours, theirs, ("round", *rule.pool))
    named = {*ours.filter, *theirs.filter, *rule.over, *rule.against_each, *_NOT_CONDITIONS, "phase"}
    for column in ours.rows.columns:
        if column in named or theirs.rows[column].isna().all() or ours.rows[column].isna().all():
            continue
        if set(ours.rows[column].unique()) != set(theirs.rows[column].unique()):
            raise InputError(f"'{rule.says}': {column} differs between the two sides")


def _same_members(rule: Rule, ours: _Side, theirs: _Side, averaged: Sequence[str]) -> None:
    """Refuse two averages over different rounds, or over different members of a column, for any seed or group."""
    named = {*ours.filter, *theirs.filter}
    columns = [
        name
        for name in averaged
        if name in ours.rows
        and name not in named
        # Results that do not depend on a column serve all its members; but one number is no course over rounds.
        and (name == "round" or not (ours.rows[name].isna().all() or theirs.rows[name].isna().all()))
    ]
    shared = [name for name in ours.keys if name in theirs.keys]
    for chosen in _each_and_all(columns):
        expected = defaultdict(set)
        for key, members in ours.members(chosen).items():
            expected[_project(ours.keys, key, shared)].add(members)
        for key, members in theirs.members(chosen).items():
            if expected.get(_project(theirs.keys, key, shared), {members}) != {members}:
                if chosen == ["round"]:
                    raise InputError(f"'{rule.says}': the two sides were measured in different rounds")
                raise InputError(f"'{rule.says}': {' and '.join(chosen)} differs between the two sides")


def _each_and_all(columns: list[str]) -> list[list[str]]:
    # Each column first, for a message that names it; then all, for values that occur in other combinations.
    return [*([name] for name in columns), columns]


def _project(columns: list[str], key: tuple[object, ...], wanted: list[str]) -> tuple[object, ...]:
    return tuple(value for column, value in zip(columns, key) if column in wanted)


def _difference(left: pd.Series, right: pd.Series | float) -> pd.Series:
    """Return ``left - right``, with 0 in place of rounding noise."""
    difference = left - right
    size = np.maximum(1.0, np.maximum(np.abs(left), np.abs(right)))
    return difference.where(difference.abs() > ROUNDING * size, 0.0).where(difference.notna())


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _name(columns: Sequence[str], key: Iterable[object]) -> str:
    return ", ".join(f"{column} {_text(value)}" for column, value in zip(columns, key))
