"""Our results on VCL-FPFT beside Tables 1 to 3 of the paper, which are read from the register's CSV files.

Accuracies are in percent. Data sets stand under the names of the paper's tables in small letters; those that the
paper does not have, such as digits, have no printed number.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fedlib.experiments.settings import VCLSettings
from fedlib.experiments.vcl_scene import Scene, weights_of
from fedlib.models.embedding import IMAGENET_SIZE
from fedlib.report.printed import printed
from fedlib.report.tables import mean_sd

NONE = "–"
COLLAPSED = "†"
"""Marks a method that gave one class to nearly all images."""
_PARTITIONS = {"IID": "IID", "dirichlet_0.6": "α = 0.6", "dirichlet_0.3": "α = 0.3"}
_PRINTED = {
    "vcl": "VCL-FPFT", "fbpft_vi": "FBPFT-VI", "fedavg": "FedAvg", "fedavg1": "FedAvg(1)", "dafl": "DAFL",
    "dense": "DENSE", "fedisca": "FedISCA", "e_fedisca": "E-FedISCA",
}  # fmt: skip


def scale(settings: VCLSettings, *datasets: str) -> str:
    """Say how results were computed: data, their kind and pixels a side, encoder and its start, profile, seeds.

    Args:
        settings: of the results.
        datasets: names of some of the settings' sets, or of ``settings.dataset``; none takes all of the former.
    """
    kinds: dict[str, list[str]] = {}
    for name in datasets or settings.datasets:
        images = Scene.of(settings if name == settings.dataset else settings.for_dataset(name)).images
        kinds.setdefault(f"{images.card.kind}, {images.image_size} pixels", []).append(name)
    data = "; ".join(f"{', '.join(names)} ({kind})" for kind, names in kinds.items())
    backbones = list(dict.fromkeys(settings.encoders)) or [settings.model]
    encoders = f"encoder{'s' if len(backbones) > 1 else ''} {', '.join(backbones)}"
    start = _start(settings, backbones)
    seeds = f"{settings.seeds} seed{'s' if settings.seeds > 1 else ''}"
    return f"{data}; {encoders}, {start}; profile {settings.profile}, {seeds}"


def _start(settings: VCLSettings, backbones: Sequence[str]) -> str:
    random = [name for name in backbones if weights_of(settings, name) is None]
    if len(random) == len(backbones):
        return "random weights"
    weights = Path(settings.weights or "")
    start = f"weights {weights.name}"
    if not weights.suffix:  # of ImageNet, and no file of the reader's
        start += f", images enlarged to {IMAGENET_SIZE} pixels"
    if random:
        start += f" (but {', '.join(random)}: random weights, images not enlarged)"
    return start


def partition(name: str) -> str:
    """Return a partition's name as the tables print it: ``α = 0.3`` for ``dirichlet_0.3``."""
    return _PARTITIONS.get(name, name)


def class_incremental(results: pd.DataFrame, methods: Sequence[str] = ("vcl", "vcl_code")) -> pd.DataFrame:
    """Return Table 1 and ours: overall accuracy among all classes, and the mean of the tasks, task known.

    Args:
        results: of ``vcl_pages.continual``.
        methods: rows of VCL-FPFT.

    Returns:
        A row for each data set and partition; columns by quantity: the printed number, then one of ours for each
        of ``methods``, "mean ± sd" over seeds, and what the best constant predictor scores.
    """
    floors = {"cil": "majority", "taw": "average_majority"}
    wanted = {
        "overall": ("overall_accuracy", "cil", "overall_acc"),
        "average, task known": ("average_accuracy", "taw", "avg_acc"),
    }
    own = _by_case(results)
    found: dict[str, pd.Series] = {}
    for quantity, (metric, scope, column) in wanted.items():
        found[f"{quantity}: paper"] = _printed_cells(1, column)
        rows = own[(own["metric"] == metric) & (own["scope"] == scope)]
        means = mean_sd(rows, by="case", columns="method", digits=1)
        found |= {f"{quantity}: {method}": means[method] for method in methods}
        floor = (
            own[(own["metric"] == floors[scope]) & (own["scope"] == scope)].groupby("case")["value"].mean()
        )
        found[f"{quantity}: constant"] = floor.map("{:.1f}".format)
    return _in_order(pd.DataFrame(found), own)


def unequal_classes(
    results: pd.DataFrame, methods: Sequence[str] = ("vcl", "vcl_code"), scope: str = "cil"
) -> pd.DataFrame:
    """Return what an accuracy hides where classes are unequal: balanced accuracy and macro-F1.

    Methods that gave one class to more than 99 % of the images with most seeds are marked by :data:`COLLAPSED`.

    Args:
        results: of ``vcl_pages.continual``.
        methods: rows of VCL-FPFT.
        scope: ``cil``, among all classes, or ``taw``, among those of the known task.

    Returns:
        A row for each data set and partition; columns ``balanced: <method>`` and ``macro-F1: <method>``,
        "mean ± sd" over seeds.
    """
    own = _by_case(results)
    own = own[own["scope"] == scope]
    flags = own[own["metric"] == "constant"].groupby(["case", "method"])["value"].mean()
    found: dict[str, pd.Series] = {}
    for metric, words in (("balanced_accuracy", "balanced"), ("macro_f1", "macro-F1")):
        means = mean_sd(own[own["metric"] == metric], by="case", columns="method", digits=1)
        for case, method in flags[flags > 0.5].index:
            means.loc[case, method] += f" {COLLAPSED}"
        found |= {f"{words}: {method}": means[method] for method in methods}
    return _in_order(pd.DataFrame(found), own)


def per_task(results: pd.DataFrame, method: str, number: int = 1) -> pd.DataFrame:
    """Return the accuracy on each task after the last: printed, ours with the task known, ours among all classes.

    Args:
        results: of ``vcl_pages.continual``.
        method: the row of VCL-FPFT.
        number: of the printed table, 1 or 4.

    Returns:
        Three rows for each data set and partition, and a column for each task.
    """
    own = _by_case(results)
    own = own[(own["method"] == method) & (own["metric"] == "task_accuracy")]
    parts = []
    for words, scope in (("task known", "taw"), ("among all classes", "cil")):
        rows = own[own["scope"] == scope].assign(task=own["task"].map("task {}".format))
        means = mean_sd(rows, by="case", columns="task", digits=1)
        parts.append(_in_order(means, own).assign(scored=words))
    tasks = [name for name in parts[0] if name != "scored"]
    paper = pd.DataFrame({name: _printed_cells(number, name.replace(" ", "")) for name in tasks[:4]})
    parts.insert(0, paper.reindex(parts[0].index).assign(scored="paper"))
    table = pd.concat(parts).fillna(NONE)
    order = {case: place for place, case in enumerate(parts[1].index)}
    table = table.iloc[sorted(range(len(table)), key=lambda i: order[table.index[i]])]
    return table[["scored", *tasks]]


def one_shot(results: pd.DataFrame, metric: str = "overall_accuracy") -> pd.DataFrame:
    """Return a metric of the methods, a row for each method and a column for each data set.

    Methods that gave one class to more than 99 % of the images with most seeds are marked by :data:`COLLAPSED`.

    Args:
        results: of ``vcl_pages.by_method``, of one partition.
        metric: its name.
    """
    table = mean_sd(results[results["metric"] == metric], by="method", columns="dataset", digits=1)
    flags = results[results["metric"] == "constant"].groupby(["method", "dataset"])["value"].mean()
    for (method, dataset), share in flags.items():
        if share > 0.5:
            table.loc[method, dataset] += f" {COLLAPSED}"
    if metric == "overall_accuracy":
        floor = results[results["metric"] == "majority"].groupby("dataset")["value"].mean()
        table.loc["largest class"] = floor.map("{:.1f}".format)
    return table[list(dict.fromkeys(results["dataset"]))]


def one_shot_printed(split: str, tables: Sequence[int] = (2, 3)) -> pd.DataFrame:
    """Return Tables 2 and 3 for a partition: a row for each method by our name, a column for each data set.

    Args:
        split: ``IID``, ``dirichlet_0.6`` or ``dirichlet_0.3``; another one has no rows.
        tables: numbers of the printed tables; Table 5 has heterogeneous clients.
    """
    frame = pd.concat([printed(number) for number in tables])
    frame = frame[frame["partition"] == split]
    cells = frame.assign(text=frame["accuracy"].map("{:.2f}".format)).pivot_table(
        index="method", columns="dataset", values="text", aggfunc="first", sort=False
    )
    ours = {name: method for method, name in _PRINTED.items()}
    return cells.rename(index=ours, columns=str.lower).rename_axis(columns=None).fillna(NONE)


def _by_case(results: pd.DataFrame) -> pd.DataFrame:
    return results.assign(case=results["dataset"] + ", " + results["partition"].map(partition))


def _printed_cells(number: int, column: str) -> pd.Series:
    frame = printed(number)
    names = frame["dataset"].str.lower() + ", " + frame["partition"].map(partition)
    cells = pd.Series(frame[column].to_numpy(), index=names)
    return cells.map("{:.2f}".format, na_action="ignore").fillna(NONE)


def _in_order(table: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    return table.reindex(list(dict.fromkeys(own["case"]))).fillna(NONE).rename_axis("data, partition")
