"""The numbers that the VCL-FPFT paper prints, set against each other: tables and figures that need no run.

Everything is read from the CSV files of ``register/tables``; accuracies are in percent, differences in percentage
points. What follows for single claims is decided in :mod:`fedlib.report.audit`.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from fedlib.report import audit
from fedlib.report.audit.vcl import TABLES
from fedlib.report.figures import PALETTE, WIDTH, style
from fedlib.report.register import select, table

OURS = "VCL-FPFT"
MANY_ROUNDS = "FedAvg"  # 50 rounds; every other row of Tables 2, 3 and 5 is one-shot
_CASE = ["dataset", "partition"]


def printed(number: int) -> pd.DataFrame:
    """Return Table ``number`` (1 to 8) of the paper as it is printed, numbers as floats."""
    frame = pd.DataFrame(table(TABLES[number])).replace("", np.nan)
    text = {"dataset", "partition", "method", "category", "ref"}
    return frame.astype({name: float for name in frame if name not in text})


def task_columns() -> pd.DataFrame:
    """Return, for the rows of Tables 1 and 4, what the task columns say about the two averages.

    Columns: table, dataset, partition, overall, lowest and highest task, outside (overall is outside of them),
    mean of the tasks, average as printed, gap (printed minus mean).
    """
    parts = []
    for number in (1, 4):
        frame = printed(number)
        tasks = frame[[f"task{i}" for i in range(4)]]
        part = frame[_CASE].assign(
            table=number,
            overall=frame["overall_acc"],
            lowest=tasks.min(axis=1),
            highest=tasks.max(axis=1),
            mean=tasks.mean(axis=1),
            average=frame["avg_acc"],
        )
        parts.append(part)
    rows = pd.concat(parts, ignore_index=True)
    outside = (rows["overall"] < rows["lowest"]) | (rows["overall"] > rows["highest"])
    return rows.assign(outside=outside, gap=rows["average"] - rows["mean"])


def repeated_rows() -> pd.DataFrame:
    """Return how many cells of the method's row in Tables 2, 3 and 5 equal an overall accuracy of Table 1 or 4.

    Columns: table, equals (the other table), cells, equal.
    """
    found = []
    for number, source in ((2, 1), (3, 1), (5, 4)):
        own = printed(number).query("method == @OURS").set_index(_CASE)["accuracy"]
        overall = printed(source).set_index(_CASE)["overall_acc"]
        shared = own.index.intersection(overall.index)
        equal = int((own[shared] == overall[shared]).sum())
        found.append({"table": number, "equals": source, "cells": len(shared), "equal": equal})
    return pd.DataFrame(found)


def two_scales() -> pd.DataFrame:
    """Return the method's accuracies in Tables 6 and 7 beside the two accuracies of Tables 1 and 4.

    Columns: table, dataset, printed, overall and average (ranges over the partitions and both tables, as text).
    """
    both = pd.concat([printed(1), printed(4)])
    found = []
    for number, column in ((6, "accuracy_mean"), (7, "avg_acc")):
        for _, row in printed(number).query("method == @OURS").iterrows():
            same = both[both["dataset"] == row["dataset"]]
            if same.empty:
                continue
            ranges = {
                name: f"{same[key].min():.2f} to {same[key].max():.2f}"
                for name, key in (("overall", "overall_acc"), ("average", "avg_acc"))
            }
            found.append({"table": number, "dataset": row["dataset"], "printed": row[column], **ranges})
    return pd.DataFrame(found)


def tables_7_and_8() -> pd.DataFrame:
    """Return the average in Table 7 beside the mean of the three tasks in Table 8.

    Columns: method, dataset, average, mean, gap.
    """
    tasks = printed(8).set_index(["method", "dataset"])[["task1", "task2", "task3"]]
    average = printed(7).set_index(["method", "dataset"])["avg_acc"]
    frame = pd.DataFrame({"average": average, "mean": tasks.mean(axis=1)})
    return frame.assign(gap=frame["average"] - frame["mean"]).reset_index()


def places() -> pd.DataFrame:
    """Return the method's place in each case of Table 2, among the one-shot rows and among all.

    Columns: dataset, partition, accuracy, one-shot, all.
    """
    found = []
    for (dataset, partition), group in printed(2).groupby(_CASE, sort=False):
        scores = group.set_index("method")["accuracy"]
        once = scores.drop(MANY_ROUNDS)
        found.append({
            "dataset": dataset, "partition": partition, "accuracy": scores[OURS],
            "one-shot": int((once > scores[OURS]).sum()) + 1, "all": int((scores > scores[OURS]).sum()) + 1,
        })  # fmt: skip
    return pd.DataFrame(found)


def heterogeneous_gain(column: str) -> pd.DataFrame:
    """Return Table 4 minus Table 1, one row for each data set and one column for each partition.

    Args:
        column: ``overall_acc`` or ``avg_acc``.
    """
    mixed, plain = (printed(number).set_index(_CASE)[column] for number in (4, 1))
    gain = (mixed - plain).unstack("partition")[["IID", "dirichlet_0.6", "dirichlet_0.3"]]
    return gain.rename_axis(index="data set", columns="partition")


def constant_cells() -> pd.DataFrame:
    """Return the cells of Tables 2, 3 and 5 that equal the share of one class in the official test set.

    That is the accuracy of a predictor that always names this class. Columns: table, method, dataset, partition,
    accuracy.
    """
    found = []
    for number in (2, 3, 5):
        for _, row in printed(number).iterrows():
            if row["accuracy"] in audit.class_shares(row["dataset"]):
                found.append({"table": number, **row[["method", *_CASE, "accuracy"]]})
    return pd.DataFrame(found)


def majority_floor() -> pd.DataFrame:
    """Return the method's overall accuracy in Table 1 beside the share of the largest class of the test set.

    Columns: data set, floor, and one for each partition.
    """
    overall = printed(1).pivot(index="dataset", columns="partition", values="overall_acc")
    overall.insert(0, "floor", [max(audit.class_shares(name)) for name in overall.index])
    return overall[["floor", "IID", "dirichlet_0.6", "dirichlet_0.3"]].rename_axis("data set")


def single_round_fedavg() -> pd.DataFrame:
    """Return FedAvg(1) of Table 2: data set, accuracy with either alpha, and whether the two are the same."""
    rows = printed(2).query("method == 'FedAvg(1)'")
    frame = rows.pivot(index="dataset", columns="partition", values="accuracy").rename_axis("data set")
    return frame.assign(same=frame["dirichlet_0.6"] == frame["dirichlet_0.3"])


def statements() -> pd.DataFrame:
    """Return what the printed tables say about each claim and table of the paper that they can be asked about.

    Columns: entry (index), what the paper says, what its tables say, outcome (contradicted, not contradicted).
    """
    found = []
    for entry in select("vcl", ["claim", "table"]):
        if result := audit.run(entry):
            word = "contradicted" if result.contradicted else "not contradicted"
            found.append((entry.id, entry.statement, result.text, word))
    columns = ["entry", "the paper says", "its tables say", "outcome"]
    return pd.DataFrame(found, columns=columns).set_index("entry")


def overall_and_tasks(number: int) -> Figure:
    """Draw, for each row of Table 1 or 4, the range of its task accuracies and the overall accuracy."""
    rows = task_columns().query("table == @number").reset_index(drop=True)
    names = [f"{row.dataset}, {row.partition.replace('dirichlet_', 'α = ')}" for row in rows.itertuples()]
    task, whole = sns.color_palette(PALETTE, 2)
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 0.26 * len(rows) + 1.2), layout="constrained")
        axis.hlines(rows.index, rows["lowest"], rows["highest"], color=task, linewidth=5, alpha=0.6)
        axis.plot(rows["average"], rows.index, "|", color="black", markersize=9)
        axis.plot(rows["overall"], rows.index, "D", color=whole, markersize=5)
        axis.set(yticks=rows.index, yticklabels=names, xlabel="accuracy, %", ylim=(len(rows) - 0.5, -0.5))
        axis.grid(axis="y", visible=False)
        labels = ["lowest to highest task", "their average, as printed", "overall accuracy"]
        figure.legend(
            [axis.collections[0], *axis.lines], labels, loc="outside lower center", ncols=3, frameon=False
        )
        figure.suptitle(f"Table {number}: the overall accuracy lies outside of its parts", fontsize=12)
    return figure
