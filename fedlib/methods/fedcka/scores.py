"""CKA of each layer between the global model and a client's trained model (Verhoog et al. 2026, section III)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn

from fedlib import seeds
from fedlib.errors import InputError, choose
from fedlib.features.cka import Hsic, linear_cka
from fedlib.methods.fedcka.activations import Rows, recording
from fedlib.methods.fedcka.layers import Layer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scoring:
    """How layers are compared.

    Attributes:
        rows: ``positions`` (one score an input, then the mean), ``pooled`` or ``inputs``; see ``activations``.
        hsic: ``biased`` or ``unbiased``; see ``fedlib.features.cka``.
        max_rows: a representation with more rows is reduced to a random subset of them, the same for both models.
        strict: raise where activations are not finite; otherwise the layer has no score for that input.
    """

    rows: Rows = "positions"
    hsic: Hsic = "biased"
    max_rows: int = 4096
    strict: bool = True

    def __post_init__(self) -> None:
        choose("rows", self.rows, get_args(Rows))
        choose("hsic", self.hsic, get_args(Hsic))
        if not 4 <= self.max_rows <= 4096:
            raise InputError(f"max_rows is {self.max_rows}; allowed: 4 to 4096")
        if self.rows == "inputs" and self.hsic == "biased":
            log.warning("rows='inputs' with the biased estimate gives scores near 1 for unrelated features")


def layer_scores(
    reference: nn.Module,
    local: nn.Module,
    layers: Sequence[Layer],
    inputs: Sequence[Any],
    forward: Callable[[nn.Module, Any], Any],
    scoring: Scoring,
    seed: int,
) -> dict[str, float]:
    """Return the score of every layer that can be scored, in [0, 1] by layer name.

    Neither model changes: no gradients, evaluation mode, training flags put back, no draw from torch's streams.

    Args:
        reference: the global model.
        local: the client's model; the same architecture.
        layers: of both; see ``layers.partition``.
        inputs: m inputs, each of one sample in the form that ``forward`` takes.
        forward: runs a model on one input.
        scoring: how layers are compared.
        seed: of the choice of rows.

    Raises:
        InputError: no input.
        FloatingPointError: activations that are not finite, with ``scoring.strict``.
    """
    if not inputs:
        raise InputError("layers are scored on 0 inputs; allowed: at least 1")
    names = {name for layer in layers for name in layer.modules}
    values: dict[str, list[float]] = {layer.name: [] for layer in layers}
    # "positions" gives one score an input; the other kinds of rows need all inputs at once.
    groups = [[one] for one in inputs] if scoring.rows == "positions" else [inputs]
    with recording(reference, names, scoring.rows) as x, recording(local, names, scoring.rows) as y:
        for item, group in enumerate(groups):
            x.clear()
            y.clear()
            for one in group:
                forward(reference, one)
                forward(local, one)
            for layer in layers:
                found = [
                    _score(name, x[name], y[name], scoring, (seed, item))
                    for name in layer.modules
                    if name in x and name in y
                ]
                scored = [score for score in found if not math.isnan(score)]
                if scored:  # modules that share a parameter are one layer: the least alike of them counts
                    values[layer.name].append(min(scored))
    return {name: math.fsum(found) / len(found) for name, found in values.items() if found}


def _score(
    name: str, calls_x: list[Tensor], calls_y: list[Tensor], scoring: Scoring, stream: tuple[int, int]
) -> float:
    """Return the score of one module, NaN if there is none. Several calls are stacked."""
    # A module may be called for items that a model chooses itself; calls that do not match are left out.
    pairs = [(x, y) for x, y in zip(calls_x, calls_y, strict=False) if x.shape == y.shape]
    if not pairs or len({x.shape[1] for x, _ in pairs}) > 1:
        return float("nan")
    x, y = pairs[0] if len(pairs) == 1 else (torch.cat([pair[side] for pair in pairs]) for side in (0, 1))
    if len(x) > scoring.max_rows:
        draw = seeds.torch_generator(stream[0], "cka-rows", stream[1], len(x))
        kept = torch.randperm(len(x), generator=draw)[: scoring.max_rows].sort().values
        x, y = x[kept], y[kept]
    try:
        return linear_cka(x, y, hsic=scoring.hsic)
    except FloatingPointError:
        if scoring.strict:
            raise FloatingPointError(f"activations of layer {name!r} are not finite") from None
        log.warning("activations of layer %r are not finite; it has no score for this input", name)
        return float("nan")
