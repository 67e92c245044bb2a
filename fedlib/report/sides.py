"""The two sides of a comparison rule, from a tidy frame: which rows count, and one number for each seed and group.

Everything that could make a comparison silently mean something else is refused here: a metric that is not there,
a filter that selects nothing, a condition that the rule neither fixes nor averages, unpaired seeds, rounds or
averaged results that differ between the sides or between seeds, the same measurement twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from fedlib.errors import InputError
from fedlib.report.register import Filter, Rule, Window

MIN_SEEDS = 3
ROUNDING = 1e-12  # of two numbers' size (at least 1): a smaller difference is none
_COLUMNS = ("seed", "metric", "value")
_NOT_CONDITIONS = {"seed", "round", "metric", "value"}


class Unmeasurable(Exception):
    """The frame is sound but too small or too incomplete for a verdict; the message is the reason."""


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


def sides(rule: Rule, frame: pd.DataFrame) -> pd.DataFrame:
    """Return both sides of a rule for every seed and group: all that its outcome depends on.

    Columns: ``seed``, the rule's ``over`` and ``against_each``, ``ours``, ``theirs``, and, each in words that are
    the same in all rows: ``left_out`` where members of an average were left out because fewer than three seeds
    have them, ``not_compared`` where the results lack some of what the rule compares with each.

    Args:
        rule: what to compare.
        frame: tidy results that passed ``check_frame``.

    Raises:
        InputError: the frame does not hold what the rule needs; the message names it.
        Unmeasurable: too few rounds, or values that are not finite.
    """
    frame = frame.reset_index(drop=True)  # frames put together from several runs repeat their row labels
    frame, left_out = _often_enough(rule, frame)
    ours = _side(rule, frame, rule.ours, rule.over)
    not_compared = ""
    if rule.against is None:
        table = ours.table.rename(columns={"value": "ours"}).assign(theirs=rule.reference)
    else:
        theirs = _side(rule, frame, rule.against, (*rule.over, *rule.against_each))
        _same_conditions(rule, ours, theirs)
        table = _pair(rule, ours.table, theirs.table)
        not_compared = _not_compared(rule, theirs)
    notes = {"left_out": left_out, "not_compared": not_compared}
    return table.assign(**{name: words for name, words in notes.items() if words})


def needed_seeds(rule: Rule) -> int:
    """Return the number of seeds that a verdict needs."""
    return 1 if rule.deterministic else MIN_SEEDS


def _often_enough(rule: Rule, frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the rows of those members of an average that enough seeds have, and say what is missing.

    Heavy settings have fewer seeds than light ones. An average may not hold them in some seeds and not in others,
    so it is taken over what at least three seeds share.
    """
    columns = [name for name in rule.pool if name in frame]
    if not columns:
        return frame, ""
    rows = frame[frame[columns].notna().all(axis=1)]
    for column, wanted in _filters(rule, {}).items():
        if column in rows:
            rows = rows[_matches(rows[column], wanted if isinstance(wanted, tuple) else (wanted,))]
    seeds = {
        member: frozenset(int(str(seed)) for (seed,) in found)
        for member, found in _members(rows, columns, ["seed"]).items()
    }
    kept = {member: found for member, found in seeds.items() if len(found) >= needed_seeds(rule)}
    if not kept or len(set(seeds.values())) == 1:
        return frame, ""
    shared = frozenset.intersection(*kept.values())
    if len(shared) < needed_seeds(rule):
        return frame, ""
    members = frame[columns].apply(tuple, axis=1)
    lost = [member for member in seeds if member not in kept]
    keep = ~members.isin(lost) & (frame["seed"].isin(shared) | frame[columns].isna().any(axis=1))
    notes = [name_of(columns, member) for member in lost]
    if extra := sorted(frozenset.union(*kept.values()) - shared):
        notes.append("seeds " + ", ".join(map(str, extra)) + ", which not all have")
    return frame[keep], "; ".join(notes)


def _not_compared(rule: Rule, theirs: _Side) -> str:
    """Name the values of ``against_each`` that the rule lists and the results do not hold."""
    notes = []
    for column in rule.against_each:
        wanted, there = theirs.filter.get(column), set(theirs.rows[column])
        if isinstance(wanted, tuple) and (absent := [value for value in wanted if value not in there]):
            notes.append(f"{column} {', '.join(map(text_of, absent))}")
    return "; ".join(notes)


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
    table["value"] = difference(table["value"], table.pop("minus"))
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
        names = "; ".join(sorted(name_of(runs, key) for key in lost)[:6])
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
        y = difference(part["value"], part["value"].mean()).to_numpy(dtype=np.float64)
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
    if lone := sorted(map(str, (name_of(tuple(keys), key) for key in ours ^ theirs))):
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


def difference(left: pd.Series, right: pd.Series | float) -> pd.Series:
    """Return ``left - right``, with 0 in place of rounding noise."""
    difference = left - right
    size = np.maximum(1.0, np.maximum(np.abs(left), np.abs(right)))
    return difference.where(difference.abs() > ROUNDING * size, 0.0).where(difference.notna())


def text_of(value: object) -> str:
    """Return a column's value as verdicts print it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def name_of(columns: Sequence[str], key: Iterable[object]) -> str:
    """Return the name of a group: ``rare_class 5, remaining 0.1``."""
    return ", ".join(f"{column} {text_of(value)}" for column, value in zip(columns, key))
