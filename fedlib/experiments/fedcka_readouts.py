"""What the tables on federated detection are made of: read from the runs of ``fedcka_detection``."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from fedlib.errors import InputError
from fedlib.experiments.fedcka_detection import SCORES, trajectory_of
from fedlib.experiments.study import Study
from fedlib.methods.fedcka.layers import partition

PARTS = ("head", "normalization", "attention", "neck", "backbone", "other")
_NECK = ("lidar.up", "lidar.out", "img.4", "img.side4", "img.side5", "img.out")
_RUN = ["seed", "method", "masking", "level"]


def own_scores(study: Study) -> pd.DataFrame:
    """Return mAP, NDS and car AP of every client's model on its own domain, and the weighted means (Table II)."""
    rows = study.metrics
    own = rows["metric"].isin(SCORES) & (rows["client"] == rows["domain"])
    return rows[own | rows["metric"].isin([f"{name}_weighted" for name in SCORES])]


def above_own_domain(study: Study) -> pd.DataFrame:
    """Return ``clients_above_own_domain``: how many clients beat the model that they train alone.

    Raises:
        InputError: own-domain training is not among the methods.
    """
    rows = study.select(metric="own_nds")
    alone = rows[rows["method"] == "own_domain"].set_index(["seed", "client"])["value"]
    if alone.empty:
        raise InputError("method 'own_domain' is not among the runs; allowed: a study that has it")
    rows = rows[rows["method"] != "own_domain"].reset_index(drop=True)
    reference = alone.loc[pd.MultiIndex.from_frame(rows[["seed", "client"]])].to_numpy()
    counts = rows.assign(value=(rows["value"].to_numpy() > reference).astype(float))
    summed = counts.groupby(_RUN, as_index=False, dropna=False)["value"].sum()
    return summed.assign(metric="clients_above_own_domain")


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


def personalized_by_part(study: Study, model: nn.Module) -> pd.DataFrame:
    """Return ``personalized_share`` by ``part``: share of its parameters that clients keep in all rounds.

    Args:
        study: runs of FedCKA.
        model: the detector that they train.
    """
    modules = dict(model.named_modules())
    layers = {layer.name: layer for layer in partition(model)}
    rows = _choices(study)
    part = {name: part_of(name, modules[name]) for name in layers}
    size = {name: layer.parameters for name, layer in layers.items()}
    rows = rows.assign(part=rows["layer"].map(part), size=rows["layer"].map(size))
    rows["kept"] = rows["value"] * rows["size"]
    sums = rows.groupby([*_RUN, "part"], as_index=False, dropna=False)[["kept", "size"]].sum()
    found = sums.assign(value=sums["kept"] / sums["size"], metric="personalized_share")
    return found.drop(columns=["kept", "size"])


def jaccard(one: set[str], two: set[str]) -> float:
    """Return the size of the intersection over that of the union; two empty sets agree."""
    return len(one & two) / len(one | two) if one | two else 1.0


def agreement_over_seeds(study: Study) -> pd.DataFrame:
    """Return ``mask_agreement_over_seeds``: the mean Jaccard index of the layers that a client keeps in a round.

    One row for each pair of seeds, with the pair's second seed in the column ``seed``.
    """
    rows = []
    for (method, masking, level), group in _choices(study).groupby(_RUN[1:], dropna=False):
        kept = {seed: _sets(of_seed) for seed, of_seed in group.groupby("seed")}
        for first, second in combinations(sorted(kept), 2):
            value = _mean_jaccard(kept[first], kept[second])
            rows.append((second, method, masking, level, value))
    return pd.DataFrame(rows, columns=[*_RUN, "value"]).assign(metric="mask_agreement_over_seeds")


def agreement_of_inputs(few: Study, many: Study) -> pd.DataFrame:
    """Return ``mask_agreement_10_100`` by seed: do layers scored on few inputs and on many give the same masks?

    Both trained the same models up to the first round with masks; later ones differ where the masks did.
    """
    one, two = _choices(few), _choices(many)
    rows = [
        (seed, "fedcka", _mean_jaccard(_sets(group), _sets(two[two["seed"] == seed])))
        for seed, group in one.groupby("seed")
    ]
    return pd.DataFrame(rows, columns=["seed", "method", "value"]).assign(metric="mask_agreement_10_100")


def differing_weights(study: Study, fedavg: Study) -> pd.DataFrame:
    """Return ``weights_differing_from_fedavg``: values of the global model that FedAvg's has not, by run."""
    finals = {int(run.config["seed"]): _final(run) for run in fedavg.runs}
    labels = study.metrics[_RUN].drop_duplicates().reset_index(drop=True)
    rows = []
    for run, label in zip(study.runs, labels.to_dict("records"), strict=True):
        wanted, found = finals[int(run.config["seed"])], _final(run)
        rows.append(label | {"value": float(sum(int((found[n] != t).sum()) for n, t in wanted.items()))})
    return pd.DataFrame(rows).assign(metric="weights_differing_from_fedavg")


def _final(run: Any) -> Mapping[str, torch.Tensor]:
    trajectory = trajectory_of(run)
    return trajectory.weights(trajectory.rounds[-1])


def _choices(study: Study) -> pd.DataFrame:
    """Return one row for each client, round and layer: 1 where the client keeps it."""
    rows = study.metrics[study.metrics["metric"].str.startswith("personal/")]
    if rows.empty:
        raise InputError(
            "no run says which layers are personal; allowed: runs of FedCKA with a round with masks"
        )
    return rows.assign(layer=rows["metric"].str.removeprefix("personal/"))


def _sets(rows: pd.DataFrame) -> dict[tuple[str, int], set[str]]:
    return {
        (str(client), int(number)): set(group.loc[group["value"] == 1, "layer"])
        for (client, number), group in rows.groupby(["client", "round"])
    }


def _mean_jaccard(one: Mapping[Any, set[str]], two: Mapping[Any, set[str]]) -> float:
    return float(np.mean([jaccard(kept, two[key]) for key, kept in one.items()]))
