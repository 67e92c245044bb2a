"""What the tables on federated detection are made of: read from the runs of ``fedcka_detection``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch

from fedlib.errors import InputError
from fedlib.experiments.fedcka_detection import SCORES, trajectory_of
from fedlib.experiments.fedcka_masks import RUN, choices, kept_layers, mean_jaccard
from fedlib.experiments.study import Study


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
    summed = counts.groupby(RUN, as_index=False, dropna=False)["value"].sum()
    return summed.assign(metric="clients_above_own_domain")


def agreement_of_inputs(few: Study, many: Study, clients: Sequence[str]) -> pd.DataFrame:
    """Return ``mask_agreement_10_100`` by seed: do layers scored on few inputs and on many give the same masks?

    The mean Jaccard index over clients and rounds. Where neither keeps a layer there is nothing to agree about;
    such pairs are left out, and a seed without a pair has NaN. Both studies trained the same models up to the
    first round with masks; later ones differ where the masks did.

    Args:
        few: runs of FedCKA with few inputs.
        many: the same with many, for the same seeds.
        clients: those that count: clients with more inputs in ``many``. One that has taken all its frames in both
            agrees with itself.
    """
    one, two = choices(few), choices(many)
    rows = []
    for seed, group in one.groupby("seed"):
        theirs = kept_layers(two[two["seed"] == seed])
        pairs = [(mine, theirs[key]) for key, mine in kept_layers(group).items() if key[0] in clients]
        rows.append((seed, "fedcka", mean_jaccard(pairs)))
    return pd.DataFrame(rows, columns=["seed", "method", "value"]).assign(metric="mask_agreement_10_100")


def differing_weights(study: Study, fedavg: Study) -> pd.DataFrame:
    """Return ``weights_differing_from_fedavg``: values of the global model that FedAvg's has not, by run."""
    finals = {int(run.config["seed"]): _final(run) for run in fedavg.runs}
    labels = study.metrics[RUN].drop_duplicates().reset_index(drop=True)
    rows = []
    for run, label in zip(study.runs, labels.to_dict("records"), strict=True):
        wanted, found = finals[int(run.config["seed"])], _final(run)
        rows.append(label | {"value": float(sum(int((found[n] != t).sum()) for n, t in wanted.items()))})
    return pd.DataFrame(rows).assign(metric="weights_differing_from_fedavg")


def _final(run: Any) -> Mapping[str, torch.Tensor]:
    trajectory = trajectory_of(run)
    return trajectory.weights(trajectory.rounds[-1])
