"""Table V of the FedCKA paper: what clients send, read from the runs of ``fedcka_detection``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
from torch import nn

from fedlib.experiments.fedcka_detection import CENTRAL, METHODS, trajectory_of
from fedlib.experiments.fedcka_masks import RUN
from fedlib.experiments.study import Study
from fedlib.methods.fedcka.layers import partition
from fedlib.runs import Run

_MASKS = dict.fromkeys(("fedbn", "fedrep", "fedcka"), "layers") | dict.fromkeys(
    ("fedselect", "fedmc"), "elements"
)
_MODELS = {"scaffold": 2}  # it sends its control variate, which is as large as the model
_HEAD: tuple[str, ...] = METHODS["fedrep"][1]["head"]
#: Which layers clients keep where the method fixes it beforehand.
_FIXED: dict[str, Callable[[str, nn.Module], bool]] = {
    "own_domain": lambda name, module: True,
    "fedbn": lambda name, module: isinstance(module, nn.modules.batchnorm._BatchNorm),
    "fedrep": lambda name, module: name.startswith(_HEAD),
}


def labelled_runs(study: Study) -> list[tuple[dict[str, Any], Run]]:
    """Return the runs of a study with their seed, method, masking and level."""
    labels = study.metrics[RUN].drop_duplicates().itertuples(index=False, name=None)
    return [(dict(zip(RUN, label, strict=True)), run) for label, run in zip(labels, study.runs, strict=True)]


def uploads(study: Study, model: nn.Module) -> pd.DataFrame:
    """Return what a client sends in a round as serialised, beside the paper's first-order model (section V-D).

    One row a run and metric, means over clients and rounds: ``upload_bytes``, all that is sent, and of these
    ``mask_bytes``; ``shared_share``, the share of the parameters that is sent; ``modelled_bytes``, four bytes for
    each of these (with SCAFFOLD eight: it sends a control variate too) and the mask; and this mask,
    ``modelled_mask_bytes``: one bit a layer or, for masks over elements, a parameter.

    Args:
        study: runs of ``fedcka_detection.compare``; centralized training sends nothing and is left out.
        model: the detector that they train.
    """
    layers = partition(model)
    size = sum(layer.parameters for layer in layers)
    bits = {"layers": len(layers), "elements": size}
    rows = []
    for label, run in labelled_runs(study):
        method = label["method"]
        if method == CENTRAL:
            continue
        sent = trajectory_of(run).ledger()
        sent = sent[sent["direction"] == "up"]
        by_kind = sent.groupby("kind")[["messages", "bytes"]].sum()
        updates = int(by_kind.loc["metadata", "messages"])  # one from each client in each round
        shared = 1 - _personal_share(label, run, model, updates)
        mask = float(-(-bits[_MASKS[method]] // 8)) if method in _MASKS else 0.0
        found = {
            "upload_bytes": float(by_kind["bytes"].sum()) / updates,
            "mask_bytes": float(by_kind.loc["masks", "bytes"]) / updates,
            "shared_share": shared,
            "modelled_bytes": 4 * size * shared * _MODELS.get(method, 1) + mask,
            "modelled_mask_bytes": mask,
        }
        rows += [(*label.values(), metric, value) for metric, value in found.items()]
    return pd.DataFrame(rows, columns=[*RUN, "metric", "value"])


def _personal_share(label: Mapping[str, Any], run: Run, model: nn.Module, updates: int) -> float:
    """Return the share of the parameters that clients keep, mean over all updates; without a mask none is kept."""
    fixed = _FIXED.get(label["method"])
    if fixed is not None:
        modules, layers = dict(model.named_modules()), partition(model)
        kept = sum(layer.parameters for layer in layers if fixed(layer.name, modules[layer.name]))
        return kept / sum(layer.parameters for layer in layers)
    rows = run.metrics
    return float(rows.loc[rows["metric"] == "personal_share", "value"].sum()) / updates
