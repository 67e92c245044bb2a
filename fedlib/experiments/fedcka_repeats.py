"""Table VI of the FedCKA paper: do margins exceed the spread of repetitions, and do ten inputs suffice?"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fedlib.experiments.fedcka_masks import chance_jaccard, choices, jaccard, kept_layers, mean_jaccard
from fedlib.experiments.study import Study

REFERENCES = {
    "agreement": "same client",
    "other_clients": "other clients",
    "chance": "random masks of these sizes",
}
"""What the masks from few inputs are compared with."""


def margins(frame: pd.DataFrame, method: str, others: Sequence[str]) -> pd.DataFrame:
    """Return the lead of a method over others beside the spread of repetitions, one row for each of the others.

    Columns: ``margin``, mean difference; ``ours`` and ``theirs``, the sample standard deviations of both methods;
    ``ratio``, the margin over the larger of these; ``ahead``, the seeds in which the method is ahead.
    All are missing for a score that no run has (car AP without cars).

    Args:
        frame: rows with seed, method and value, every method with the same seeds.
        method: whose lead.
        others: methods that it is compared with.
    """
    values = frame.pivot(index="seed", columns="method", values="value")
    spread = values.std(ddof=1)
    rows = []
    for other in others:
        lead = values[method] - values[other]
        largest = max(spread[method], spread[other])
        ratio = lead.mean() / largest if largest > 0 else float("nan")
        ahead = int((lead > 0).sum()) if lead.notna().any() else pd.NA
        rows.append((other, lead.mean(), spread[method], spread[other], ratio, ahead))
    columns = ["method", "margin", "ours", "theirs", "ratio", "ahead"]
    return pd.DataFrame(rows, columns=columns).set_index("method").astype({"ahead": "Int64"})


def agreement_by_round(few: Study, many: Study) -> pd.DataFrame:
    """Return how far layers scored on few and on many inputs give the same masks, by seed, client and round.

    Metrics: ``agreement``, the Jaccard index of a client's two masks; what it is with the many-input masks of the
    ``other_clients``, in the mean, and in expectation by ``chance`` for random masks of these sizes; the sizes
    ``layers_few`` and ``layers_many``; and the largest difference of two scores of a layer, ``score_difference``.
    Two masks that keep no layer agree about nothing; the Jaccard index is NaN.

    Args:
        few: runs of FedCKA with few inputs.
        many: the same with many, for the same seeds.
    """
    one, two = choices(few), choices(many)
    count = one["layer"].nunique()
    differences = _score_differences(few, many)
    rows: list[tuple[int, str, int, str, float]] = []
    for seed, group in one.groupby("seed"):
        theirs = kept_layers(two[two["seed"] == seed])
        for (client, number), kept in kept_layers(group).items():
            found = theirs[client, number]
            others = [
                (kept, layers) for (name, when), layers in theirs.items() if when == number and name != client
            ]
            values = {
                "agreement": jaccard(kept, found),
                "other_clients": mean_jaccard(others),
                "chance": chance_jaccard(len(kept), len(found), count),
                "layers_few": float(len(kept)),
                "layers_many": float(len(found)),
                "score_difference": float(differences[seed, client, number]),
            }
            rows += [(int(seed), client, number, metric, value) for metric, value in values.items()]
    return pd.DataFrame(rows, columns=["seed", "client", "round", "metric", "value"])


def _score_differences(few: Study, many: Study) -> pd.Series:
    keys = ["seed", "client", "round", "metric"]
    one, two = (
        study.metrics[study.metrics["metric"].str.startswith("cka/")].set_index(keys)["value"]
        for study in (few, many)
    )
    return (one - two).abs().groupby(level=keys[:-1]).max()
