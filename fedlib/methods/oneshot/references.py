"""What the clients' models give without a global model: the rows that a one-shot method has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from fedlib.errors import InputError
from fedlib.federation.ledger import Ledger
from fedlib.federation.tasks import ImageData
from fedlib.methods.oneshot.base import Problem, Result, device_of, scores, uploaded
from fedlib.methods.oneshot.ensemble import Ensemble


def local_only(models: Sequence[nn.Module], data: ImageData) -> dict[str, Any]:
    """Return the scores of the clients' own models on common test data.

    Returns:
        ``clients``: the scores of each (see :func:`fedlib.methods.oneshot.base.scores`); ``best``: the highest
        accuracy (picked on the test data, so an upper bound), ``mean`` and ``std`` of the accuracies, percent;
        ``ledger``: empty, nothing is sent.

    Raises:
        InputError: no client.
    """
    if not models:
        raise InputError("there are 0 clients; allowed: at least one")
    each = [scores(model, data) for model in models]
    accuracy = np.array([row["accuracy"] for row in each])
    summary = {"best": accuracy.max(), "mean": accuracy.mean(), "std": accuracy.std()}
    return {"clients": each, "ledger": Ledger()} | {name: float(value) for name, value in summary.items()}


def logit_ensemble(models: Sequence[nn.Module], problem: Problem) -> Result:
    """Return the mean of the clients' logits as a global model: the teacher of the distillation methods.

    It has the size of all clients' models together.

    Raises:
        InputError: no client.
    """
    ledger = uploaded(models)
    ensemble = Ensemble(models, device_of(models[0]))
    shape = {"clients": len(models), "num_classes": problem.num_classes, "image_size": problem.image_size}
    return Result("logit_ensemble", ensemble, [], ledger, shape)
