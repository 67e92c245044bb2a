"""Tables II and III of the FedCKA paper, read from the runs of ``fedcka_detection``, and their references.

In the frames of this module every row of the tables is one ``method``: FedCKA with the threshold, the paper's main
variant, is ``fedcka``; with the percentage it is ``fedcka_percentage``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from fedlib.data.detection_boxes import Detections, Truth
from fedlib.data.detection_metrics import devkit_metrics, evaluate
from fedlib.data.nuscenes import DOMAINS
from fedlib.experiments.fedcka_detection import ALL, SCORES, Scenes, averaged, evaluated, trajectory_of
from fedlib.experiments.settings import FedCKASettings
from fedlib.experiments.study import Study
from fedlib.federation.model_state import FlatModel
from fedlib.runs import Store, Workspace

ALONE, START = "own_domain", "start"
FEDERATED = ("fedavg", "feddyn", "pcgrad", "fedrep", "fedbn", "fedmc", "fedselect", "fedcka")
"""The federated methods of the paper's Table II, in its order."""

PERFECT = "annotations"
AVERAGE = "average"
_AP = "ap_"


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows of the comparison with one name for each row of the tables, without ``masking``, ``level``."""
    kept = rows["method"].where(rows["masking"] != "percentage", rows["method"] + "_percentage")
    return rows.drop(columns=["masking", "level"]).assign(method=kept)


def scores(study: Study, *metrics: str) -> pd.DataFrame:
    """Return the rows with these metrics, by method: client, domain, round, seed, value."""
    return named(study.select(metric=list(metrics)))


def own(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of clients' models on their own domains: the diagonal of the matrices."""
    return frame[(frame["client"] == frame["domain"]) & (frame["domain"] != ALL)]


def by_domain(frame: pd.DataFrame, score: str) -> pd.DataFrame:
    """Return a score of every client's model on its own domain, and its weighted mean as domain ``average``.

    Args:
        frame: of ``scores`` or ``references``, with the metrics ``score`` and ``<score>_weighted``.
        score: ``map``, ``nds`` or ``cap``.
    """
    home = own(frame[frame["metric"] == score])
    mean = frame[frame["metric"] == f"{score}_weighted"].assign(domain=AVERAGE)
    return pd.concat([home, mean], ignore_index=True)


def weighted(frame: pd.DataFrame, weights: Mapping[str, float]) -> pd.DataFrame:
    """Return the weighted mean over own domains of every metric, by seed and method.

    Args:
        frame: of ``scores`` or ``references``.
        weights: of the domains.
    """
    rows = own(frame)
    share = rows["domain"].map(dict(weights))
    rows = rows.assign(share=share, value=rows["value"] * share)
    sums = rows.groupby(["seed", "method", "metric"], as_index=False)[["value", "share"]].sum()
    return sums.assign(value=sums["value"] / sums["share"]).drop(columns="share")


def gains(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows of ``by_domain`` minus those of own-domain training, seed by seed, without the latter."""
    alone = frame[frame["method"] == ALONE].set_index(["seed", "domain"])["value"]
    rows = frame[(frame["method"] != ALONE) & frame["seed"].isin(alone.index.get_level_values("seed"))]
    reference = alone.loc[pd.MultiIndex.from_frame(rows[["seed", "domain"]])].to_numpy()
    return rows.assign(value=rows["value"].to_numpy() - reference)


def off_diagonal(frame: pd.DataFrame, weights: Mapping[str, float] | None = None) -> pd.DataFrame:
    """Return the mean score of the clients' models on the domains of others, by seed and method.

    Args:
        frame: of ``scores`` with one metric by client and domain.
        weights: of the domains that are scored on; None counts all pairs alike.
    """
    rows = frame[frame["client"] != frame["domain"]]
    share = rows["domain"].map(dict(weights)) if weights else 1.0
    rows = rows.assign(share=share, value=rows["value"] * share)
    sums = rows.groupby(["seed", "method"], as_index=False)[["value", "share"]].sum()
    return sums.assign(value=sums["value"] / sums["share"]).drop(columns="share")


def behind_home(study: Study) -> pd.DataFrame:
    """Return mAP of each client's model on each domain minus that of the domain's own model on the same classes.

    A client without an annotated box of a class cannot learn it alone, and classes are not equally hard. Columns:
    seed, method, client, domain, value, and ``classes``: ``all`` that occur in the domain, or ``common``, those
    that occur in the client's domain too.
    """
    rows = named(study.metrics[study.metrics["metric"].str.startswith(_AP)])
    keys = ["seed", "method", "domain", "metric"]
    home = own(rows)[[*keys, "value"]]
    rows = rows.merge(home, on=keys, suffixes=("", "_home"))
    rows = rows.assign(value=rows["value"] - rows["value_home"])
    available = rows.groupby("domain")["metric"].agg(set)
    known = [name in available[client] for name, client in zip(rows["metric"], rows["client"], strict=True)]
    parts = [rows.assign(classes="all"), rows[known].assign(classes="common")]
    groups = ["seed", "method", "client", "domain", "classes"]
    return pd.concat(parts).groupby(groups, as_index=False)["value"].mean()


def perfect_predictions(truth: Truth) -> dict[str, Detections]:
    """Return predictions that are the annotated boxes themselves, all with the same score.

    Boxes without a point stay out, as they do in the evaluation; an unknown velocity becomes 0.
    """
    found = {}
    for token in truth.tokens:
        item = truth.driving.labels(token)
        kept = item.num_points > 0
        boxes, classes, marks = item.boxes[kept], item.classes[kept], item.attributes[kept]
        found[token] = Detections(np.nan_to_num(boxes), classes, np.full(len(boxes), 0.9), marks)
    return found


def references(settings: FedCKASettings) -> Study:
    """Score what needs no federated training: the model that all methods start from, and perfect predictions.

    Columns: seed, method, client, domain, metric, value. ``start``: the metrics of ``fedcka_detection.compare`` on
    every domain (client and domain are the same), the weighted means, and ``off_diagonal_nds``. Without a learned
    start it is a random model. ``annotations``, by domain (client ``all``): ``map_of_ground_truth``, the devkit's
    mean over all ten classes as ``map_of_ten_classes``, and the number of ``classes`` that occur.
    """
    scenes = Scenes.of(settings)
    start = scenes.start()
    config = {"start": start.key if start else "random", "seed": 0}

    def compute(workspace: Workspace) -> None:
        task = scenes.task()
        model = FlatModel(task.build_model(0), task.device)
        if start:
            model.load(trajectory_of(start).weights(scenes.settings.warm_epochs))
        rows: list[tuple[str, str, str, float]] = []
        for domain in DOMAINS:
            frames = scenes.frames(domain, "val")
            found = evaluated(task, model, frames)
            rows += [(START, domain, metric, value) for metric, value in found.items()]
            truth = frames.truth
            perfect = perfect_predictions(truth)
            rows.append((PERFECT, domain, "map_of_ground_truth", evaluate(truth, perfect).mean_ap))
            rows.append((PERFECT, domain, "map_of_ten_classes", devkit_metrics(truth, perfect).mean_ap))
            rows.append((PERFECT, domain, "classes", float(len(truth.counts))))
        columns = ["method", "domain", "metric", "value"]
        table = pd.DataFrame(rows, columns=columns)
        means = _means(table[table["method"] == START], scenes.weights)
        table = table.assign(client=table["domain"].where(table["method"] == START, ALL))
        workspace.finish(pd.concat([table, means], ignore_index=True).assign(seed=0))

    return Study.of([Store().compute(scenes.spec("fedcka.references", config, __name__), compute)])


def _means(rows: pd.DataFrame, weights: Mapping[str, float]) -> pd.DataFrame:
    """Return the means of a model that all clients share."""
    cells = rows.set_index(["metric", "domain"])["value"]
    found = [
        (f"{name}_weighted", averaged(dict(cells[name]) if name in cells else {}, weights)) for name in SCORES
    ]
    # every domain is foreign to all clients but one
    found.append(("off_diagonal_nds", float(cells["nds"].mean())))
    table = pd.DataFrame(found, columns=["metric", "value"])
    return table.assign(method=START, client=ALL, domain=ALL)
