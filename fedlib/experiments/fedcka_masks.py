"""What FedCKA keeps: readouts of the scores and masks in runs of ``fedcka_detection``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import hypergeom
from torch import nn

from fedlib.data.nuscenes import DOMAINS
from fedlib.errors import InputError
from fedlib.experiments.study import Study
from fedlib.methods.fedcka.layers import partition

PARTS = ("head", "normalization", "attention", "neck", "backbone", "other")
BRANCHES = {
    "lidar": "LiDAR",
    "img": "image",
    "embed": "embeddings",
    "decoder": "decoder",
    "heads": "heads",
}
RUN = ["seed", "method", "masking", "level"]
_NECK = ("lidar.up", "lidar.out", "img.4", "img.side4", "img.side5", "img.out")

Kept = Mapping[tuple[str, int], set[str]]
"""Names of the layers that a client keeps in a round, by client and round."""


def part_of(name: str, module: nn.Module) -> str:
    """Return the part of the detector that a layer belongs to, one of ``PARTS``.

    Args:
        name: of the layer.
        module: its module. Normalisation layers are a part of their own, but for those in the head.
    """
    if name.startswith("heads."):
        return "head"
    if isinstance(module, nn.modules.batchnorm._NormBase | nn.LayerNorm):
        return "normalization"
    if "attention" in name:
        return "attention"
    if name.startswith(_NECK):
        return "neck"
    return "backbone" if name.startswith(("img.", "lidar.")) else "other"


def anatomy(model: nn.Module) -> pd.DataFrame:
    """Return the layers of a detector in network order: index ``layer``, columns part, branch, parameters."""
    modules = dict(model.named_modules())
    rows = [
        (layer.name, part_of(layer.name, modules[layer.name]), _branch(layer.name), layer.parameters)
        for layer in partition(model)
    ]
    return pd.DataFrame(rows, columns=["layer", "part", "branch", "parameters"]).set_index("layer")


def kept_by_part(study: Study, layers: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """Return how much of each part of the detector clients keep, over all rounds with masks.

    Columns: seed, method, masking, level, those of ``by``, part, metric, value. Metrics: ``personalized_share``
    of the part's parameters and ``kept_rate``, the share of its layers, each layer counting the same.

    Args:
        study: runs of FedCKA.
        layers: from ``anatomy``.
        by: further columns to tell apart: ``client``, ``round``.
    """
    rows = choices(study)
    rows = rows.assign(part=rows["layer"].map(layers["part"]), size=rows["layer"].map(layers["parameters"]))
    rows["kept"] = rows["value"] * rows["size"]
    keys = [*RUN, *by, "part"]
    groups = rows.groupby(keys, dropna=False)
    share = groups["kept"].sum() / groups["size"].sum()
    found = pd.DataFrame({"personalized_share": share, "kept_rate": groups["value"].mean()})
    return found.melt(var_name="metric", ignore_index=False).reset_index()


def kept_in_heads(study: Study) -> pd.DataFrame:
    """Return how often clients keep the layers of the heads, over clients, rounds with masks and decoder layers.

    Columns: seed, method, masking, level, quantity (what a head predicts: cls, centre, ...), metric ``kept_rate``,
    value.
    """
    rows = choices(study)
    rows = rows[rows["layer"].str.startswith("heads.")]
    rows = rows.assign(quantity=rows["layer"].str.split(".").str[2])
    means = rows.groupby([*RUN, "quantity"], as_index=False, dropna=False)["value"].mean()
    return means.assign(metric="kept_rate")


def maps(study: Study, layers: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return scores or masks by layer, client and round, means over seeds.

    Rows are the layers in network order, columns pairs (client, round). NaN: no score.

    Args:
        study: runs of FedCKA with one level.
        layers: from ``anatomy``.
        metric: ``cka`` or ``personal``.
    """
    rows = _of_layers(study, metric)
    table = rows.pivot_table("value", "layer", ["client", "round"]).reindex(layers.index)
    return table[[name for name in DOMAINS if name in table.columns.levels[0]]]


def share_at_fixed_scores(study: Study, layers: pd.DataFrame, taus: Sequence[float]) -> pd.DataFrame:
    """Return which share of the parameters thresholds *would* keep if the scores were those of these runs.

    Columns: seed, client, round, level (the threshold), metric ``personal_share``, value. For fixed scores the
    share cannot fall when the threshold rises (Verhoog et al. 2026, section V-C).

    Args:
        study: runs of FedCKA with one level; level 0 gives the scores along FedAvg's course.
        layers: from ``anatomy``.
        taus: thresholds.
    """
    rows = _of_layers(study, "cka")
    size, total = rows["layer"].map(layers["parameters"]), layers["parameters"].sum()
    parts = [
        rows.assign(level=float(tau), value=(rows["value"] < tau) * size / total)
        .groupby(["seed", "client", "round", "level"], as_index=False)["value"]
        .sum()
        for tau in taus
    ]
    return pd.concat(parts, ignore_index=True).assign(metric="personal_share")


def at_level(study: Study, masking: str, level: float) -> Study:
    """Return the runs of a study with one level.

    Raises:
        InputError: there are none.
    """
    keep = (study.metrics["masking"] == masking) & np.isclose(study.metrics["level"], level)
    if not keep.any():
        raise InputError(f"no run has masking {masking!r} and level {level}; allowed: one that was run")
    labels = study.metrics[RUN].drop_duplicates()
    chosen = (labels["masking"] == masking) & np.isclose(labels["level"], level)
    runs = tuple(run for run, taken in zip(study.runs, chosen, strict=bool(study.runs)) if taken)
    return Study(runs, study.metrics[keep].reset_index(drop=True))


def best_level(study: Study, masking: str) -> float:
    """Return the level between 0 and 1 with the highest weighted NDS, mean over seeds.

    Raises:
        InputError: no run with such a level.
    """
    rows = study.metrics
    rows = rows[(rows["metric"] == "nds_weighted") & (rows["masking"] == masking)]
    rows = rows[rows["level"].between(0, 1, inclusive="neither")]
    if rows.empty:
        raise InputError(f"no run has masking {masking!r} and a level between 0 and 1, both excluded")
    return float(rows.groupby("level")["value"].mean().idxmax())


def best_scores(study: Study) -> pd.DataFrame:
    """Return ``best_nds_weighted`` by seed and masking: the weighted NDS with ``best_level``.

    One level is chosen for all seeds; the best of each seed would be higher by luck alone. Which level it is, is
    left out of the columns, since it differs between the two maskings that are compared.
    """
    rows = study.select(metric="nds_weighted", method="fedcka")
    parts = [
        rows[(rows["masking"] == masking) & (rows["level"] == best_level(study, masking))]
        for masking in rows["masking"].unique()
    ]
    return pd.concat(parts)[["seed", "method", "masking", "value"]].assign(metric="best_nds_weighted")


def jaccard(one: set[str], two: set[str]) -> float:
    """Return the size of the intersection over that of the union; NaN for two empty sets, which say nothing."""
    return len(one & two) / len(one | two) if one | two else float("nan")


def mean_jaccard(pairs: Iterable[tuple[set[str], set[str]]]) -> float:
    """Return the mean Jaccard index of the pairs that say something; NaN if none does."""
    found = [jaccard(one, two) for one, two in pairs if one | two]
    return float(np.mean(found)) if found else float("nan")


def chance_jaccard(first: int, second: int, of: int) -> float:
    """Return the expected Jaccard index of two random sets of ``first`` and ``second`` layers of ``of``; NaN for
    two empty ones."""
    if first + second == 0:
        return float("nan")
    common = np.arange(max(0, first + second - of), min(first, second) + 1)
    return float(hypergeom(of, first, second).pmf(common) @ (common / (first + second - common)))


def agreement_over_seeds(study: Study) -> pd.DataFrame:
    """Return how well the masks of two seeds agree: mean Jaccard index of the layers that are kept.

    Each seed is compared with the next one, the last with the first, so that every seed has one row for each
    metric; with one seed the value is NaN. Pairs in which nobody keeps a layer agree about nothing and are left
    out. Metrics: ``mask_agreement_over_seeds`` of the same client in the same round,
    ``mask_agreement_over_clients`` of different clients in the same round, and ``mask_agreement_by_chance``, what
    random masks with the same numbers of layers would give in place of the first.
    """
    rows = []
    for key, group in choices(study).groupby(RUN[1:], dropna=False):
        count = group["layer"].nunique()
        kept = {int(seed): kept_layers(of_seed) for seed, of_seed in group.groupby("seed")}
        seeds = sorted(kept)
        for place, seed in enumerate(seeds):
            one, two = kept[seed], kept[seeds[(place + 1) % len(seeds)]]
            for metric, values in _agreements(one, two, count).items():
                value = float(np.mean(values)) if values and len(seeds) > 1 else float("nan")
                rows.append((seed, *key, metric, value))
    return pd.DataFrame(rows, columns=[*RUN, "metric", "value"])


def changes(study: Study, layers: pd.DataFrame) -> pd.DataFrame:
    """Return what happens to layers from one round with masks to the next, summed over clients and rounds.

    Columns: seed, method, masking, level, part, metric, value. Metrics: ``kept_anew`` and ``shared_again``,
    numbers of layers.

    Args:
        study: runs of FedCKA.
        layers: from ``anatomy``.
    """
    rows = choices(study).sort_values("round")
    step = rows.groupby([*RUN, "client", "layer"], dropna=False)["value"].diff()
    rows = rows.assign(part=rows["layer"].map(layers["part"]), kept_anew=step > 0, shared_again=step < 0)
    sums = rows.groupby([*RUN, "part"], dropna=False)[["kept_anew", "shared_again"]].sum().astype(float)
    return sums.melt(var_name="metric", ignore_index=False).reset_index()


def choices(study: Study) -> pd.DataFrame:
    """Return one row for each client, round and layer: ``value`` is 1 where the client keeps it.

    Raises:
        InputError: no run says which layers are personal.
    """
    return _of_layers(study, "personal")


def kept_layers(rows: pd.DataFrame) -> dict[tuple[str, int], set[str]]:
    """Return the names of the layers that are kept, by client and round, from ``choices`` of one run."""
    return {
        (str(client), int(number)): set(group.loc[group["value"] == 1, "layer"])
        for (client, number), group in rows.groupby(["client", "round"])
    }


def _agreements(one: Kept, two: Kept, count: int) -> dict[str, list[float]]:
    same = [(mine, two[key]) for key, mine in one.items()]
    other = [
        (mine, theirs)
        for (client, number), mine in one.items()
        for (name, other_round), theirs in two.items()
        if client != name and number == other_round
    ]
    return {
        "mask_agreement_over_seeds": [jaccard(a, b) for a, b in _not_empty(same)],
        "mask_agreement_over_clients": [jaccard(a, b) for a, b in _not_empty(other)],
        "mask_agreement_by_chance": [chance_jaccard(len(a), len(b), count) for a, b in _not_empty(same)],
    }


def _not_empty(pairs: Sequence[tuple[set[str], set[str]]]) -> Iterator[tuple[set[str], set[str]]]:
    return (pair for pair in pairs if pair[0] or pair[1])


def _of_layers(study: Study, metric: str) -> pd.DataFrame:
    rows = study.metrics[study.metrics["metric"].str.startswith(f"{metric}/")]
    if rows.empty:
        raise InputError(
            "no run says which layers are personal; allowed: runs of FedCKA with a round with masks"
        )
    return rows.assign(layer=rows["metric"].str.removeprefix(f"{metric}/"))


def _branch(name: str) -> str:
    return next((title for start, title in BRANCHES.items() if name.startswith(start)), "other")
