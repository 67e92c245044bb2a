"""Tables of continual methods: both scopes of prediction, forgetting, printed numbers beside ours.

Columns of the frames: those of :mod:`fedlib.experiments.vcl_continual_pages`.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from fedlib.errors import InputError
from fedlib.report.register import select
from fedlib.report.tables import mean_sd
from fedlib.report.vcl_tables import COLLAPSED

_ACCURACIES = {
    ("cil", "overall_accuracy"): "overall",
    ("cil", "average_accuracy"): "average, class-incremental",
    ("taw", "average_accuracy"): "average, task-aware",
}
_BY_CLASS = {
    ("cil", "balanced_accuracy"): "balanced: all classes",
    ("taw", "balanced_accuracy"): "balanced: task known",
    ("cil", "macro_f1"): "macro-F1: all classes",
    ("taw", "macro_f1"): "macro-F1: task known",
}
_LOSSES = {
    ("cil", "forgetting"): "class-incremental",
    ("cil", "forgetting_code"): "the code's formula",
    ("cil", "bwt"): "BWT",
    ("taw", "forgetting"): "task-aware",
}
_CELLS = {
    "accuracy_mean": "accuracy",
    "forgetting_mean": "forgetting",
    "avg_acc": "average accuracy",
    "forgetting": "forgetting",
    "task1": "task 1",
    "task2": "task 2",
    "task3": "task 3",
}
SCOPES = {"cil": "class-incremental", "taw": "task-aware"}
_SHORT = {"cil": "all classes", "taw": "task known"}  # in the heads of wide tables


def scores(frame: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Return the accuracies of all methods on one data set, percent: mean ± sd over seeds.

    The last column says in how many seeds the final class-incremental predictor is constant.

    Args:
        frame: results on one data set.
        names: of the methods, in the order of the rows.

    Raises:
        InputError: results of several data sets.
    """
    table = _means(frame, _ACCURACIES)
    flags = _constant(frame).groupby("method")["value"].agg(["sum", "count"])
    table["constant"] = [f"{flags['sum'][m]:.0f} of {flags['count'][m]}" for m in table.index]
    return _named(table, names)


def unequal_classes(frame: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Return what an accuracy hides where classes are unequal, percent: mean ± sd over seeds.

    Balanced accuracy and macro-F1 over the test images of all tasks, in both scopes. Predictors that are constant
    with most seeds, each by its scope, are marked by :data:`fedlib.report.vcl_tables.COLLAPSED`.

    Args:
        frame: results on one data set.
        names: of the methods, in the order of the rows.

    Raises:
        InputError: results of several data sets.
    """
    table = _means(frame, _BY_CLASS)
    for (scope, _), column in _BY_CLASS.items():
        share = _constant(frame, scope).groupby("method")["value"].mean()
        for method in share.index[share > 0.5]:
            table.loc[method, column] += f" {COLLAPSED}"
    return _named(table, names)


def collapsed(frame: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Return with how many seeds a method's final class-incremental predictor is constant, by data set.

    Methods with none have no row.

    Args:
        frame: results.
        names: of the methods, in the order of the rows.
    """
    counts = _constant(frame).pivot_table(
        index="method", columns="dataset", values="value", aggfunc="sum", fill_value=0, sort=False
    )
    return _named(counts[counts.sum(axis=1) > 0].astype(int), names)


def _constant(frame: pd.DataFrame, scope: str = "cil") -> pd.DataFrame:
    """Return the rows that flag constant predictors; with several encoders, 1 where most are constant."""
    rows = frame[(frame["metric"] == "constant") & (frame["scope"] == scope)]
    return rows.assign(value=(rows["value"] > 0.5).astype(float))


def losses(frame: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Return what all methods forget on one data set, percentage points: mean ± sd over seeds.

    Forgetting is class-incremental by the paper's and by the code's formula, and task-aware by the paper's; BWT,
    the backward transfer, is class-incremental. Methods without tasks have no row.

    Args:
        frame: results on one data set.
        names: of the methods, in the order of the rows.

    Raises:
        InputError: results of several data sets.
    """
    return _named(_means(frame, _LOSSES), names)


def _means(frame: pd.DataFrame, columns: Mapping[tuple[str, str], str]) -> pd.DataFrame:
    _one_set(frame)
    keys = list(zip(frame["scope"], frame["metric"]))
    rows = frame.assign(column=[columns.get(key) for key in keys])
    rows = rows[rows["column"].notna() & (rows["task"] < 0)]
    table = mean_sd(rows, by="method", columns="column", digits=1)
    return table[[name for name in columns.values() if name in table]]


def floor(frame: pd.DataFrame) -> str:
    """Return in words what the best constant predictors score, overall and as an average over the tasks."""
    _one_set(frame)
    names = {"majority": "overall", "average_majority": "on average over the tasks"}
    found = frame[frame["metric"].isin(names)].groupby(["scope", "metric"])["value"].mean()
    values = {s: " and ".join(f"{found[s, m]:.1f} % {w}" for m, w in names.items()) for s in SCOPES}
    return f"Always naming one class scores {values['cil']}; one of the known task, {values['taw']}."


def forgetting(frame: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Return the paper's forgetting with the scope as ``metric`` and named methods, for bars."""
    rows = frame[(frame["metric"] == "forgetting") & frame["scope"].isin(SCOPES)]
    return rows.assign(metric=rows["scope"], method=rows["method"].map(names))


def course(frame: pd.DataFrame, methods: Mapping[str, str]) -> pd.DataFrame:
    """Return accuracies over the tasks with the method's name as ``dataset``, for panels side by side.

    Args:
        frame: accuracies on one data set, a column ``method``.
        methods: titles of the methods that are drawn, in order.

    Raises:
        InputError: results of several data sets.
    """
    _one_set(frame)
    parts = [frame[frame["method"] == m].assign(dataset=title) for m, title in methods.items()]
    return pd.concat(parts, ignore_index=True)


def beside_printed(number: int, dataset: str, frame: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Return printed numbers of Table 6, 7 or 8 beside ours in both scopes, means over seeds, percent.

    A dash stands where the table prints nothing, or where there is no result. Of ours, ``all classes`` is
    class-incremental and ``task known`` task-aware.

    Args:
        number: of the table.
        dataset: column of the table, a name of the register.
        frame: results.
        names: of the methods, in the order of the rows.

    Raises:
        InputError: the table prints nothing for the data set and the methods.
    """
    printed: dict[str, dict[str, str]] = {}
    columns: dict[str, tuple[str | None, object]] = {}
    for entry in select("vcl", ["cell"]):
        if entry.where != f"Table {number}" or not entry.cell or entry.cell.column not in _CELLS:
            continue
        rule, label = entry.parts[0], _CELLS[entry.cell.column]
        if rule.ours.get("dataset") == dataset:
            columns[label] = rule.metric, rule.where.get("task", -1)
            value = entry.values[0].printed or f"{entry.values[0].value:.2f}"
            printed.setdefault(str(rule.ours.get("method")), {})[label] = value
    own = frame[frame["dataset"] == dataset]
    found: dict[str, dict[str, str]] = {}
    for method in names:
        row: dict[str, str] = {}
        for label, (metric, task) in columns.items():
            rows = own[(own["metric"] == metric) & (own["method"] == method) & (own["task"] == task)]
            means = rows.groupby("scope")["value"].mean()
            row[f"{label}: paper"] = printed.get(method, {}).get(label, "–")
            row |= {f"{label}: {w}": f"{means[s]:.1f}" if s in means else "–" for s, w in _SHORT.items()}
        if set(row.values()) - {"–"}:
            found[method] = row
    if not found:
        raise InputError(f"Table {number} prints nothing for {dataset}")
    return _named(pd.DataFrame.from_dict(found, orient="index").fillna("–"), names)


def _named(table: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    order = [name for name in names if name in table.index]
    return table.loc[order].rename(index=dict(names)).rename_axis("method")


def _one_set(frame: pd.DataFrame) -> None:
    sets = list(dict.fromkeys(frame["dataset"]))
    if len(sets) != 1:
        raise InputError(
            f"results are of {', '.join(map(str, sets)) or 'no data set'}; allowed: one data set"
        )
