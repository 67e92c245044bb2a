"""CKA of each layer between the global model and a client's trained model (Verhoog et al. 2026, section III)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn

from fedlib import seeds
from fedlib.errors import InputError, choose
from fedlib.features.cka import Hsic, linear_cka, stacked_cka
from fedlib.methods.fedcka.activations import Rows
from fedlib.methods.fedcka.layers import Layer
from fedlib.methods.fedcka.representations import Pairs, representations

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
    join: Callable[[list[Any]], Any] | None = None,
) -> dict[str, float]:
    """Return the score of every layer that can be scored, in [0, 1] by layer name.

    Neither model changes: no gradients, evaluation mode, training flags put back, no draw from torch's streams.

    Args:
        reference: the global model.
        local: the client's model; the same architecture.
        layers: of both; see ``layers.partition``.
        inputs: m inputs, each of one sample in the form that ``forward`` takes.
        forward: runs a model on one input, or on what ``join`` makes.
        scoring: how layers are compared.
        seed: of the choice of rows.
        join: makes one input of several, which pass through the models faster together; scores stay those of
            each input. See ``representations``.

    Raises:
        InputError: no input.
        FloatingPointError: activations that are not finite, with ``scoring.strict``.
    """
    if not inputs:
        raise InputError("layers are scored on 0 inputs; allowed: at least 1")
    names = {name for layer in layers for name in layer.modules}
    values: dict[str, list[float]] = {layer.name: [] for layer in layers}
    groups: Iterable[Pairs] = representations(reference, local, names, inputs, forward, join)
    # "positions" gives one score an input; the other kinds of rows need all inputs at once.
    if scoring.rows != "positions":
        groups = [_together(groups, scoring.rows)]
    item = 0
    for pairs in groups:
        found = {name: _scores(name, *pair, scoring, (seed, item)) for name, pair in pairs.items()}
        for layer in layers:
            for scores in zip(*(found[name] for name in layer.modules if name in found), strict=True):
                scored = [score for score in scores if not math.isnan(score)]
                if scored:  # modules that share a parameter are one layer: the least alike of them counts
                    values[layer.name].append(min(scored))
        item += max(map(len, found.values()), default=1)
    return {name: math.fsum(found) / len(found) for name, found in values.items() if found}


def _together(groups: Iterable[Pairs], rows: Rows) -> Pairs:
    """Return (1, n, p) by module: the places of all inputs as rows, or one row for each input."""
    found: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for pairs in groups:
        for name, pair in pairs.items():
            x, y = (m.flatten(1) if rows == "inputs" else m.flatten(0, 1) for m in pair)
            found.setdefault(name, []).append((x.clone(), y.clone()))
    return {
        name: (torch.cat([x for x, _ in parts])[None], torch.cat([y for _, y in parts])[None])
        for name, parts in found.items()
        if len({x.shape[1] for x, _ in parts}) == 1  # inputs of different sizes are no rows of one matrix
    }


def _scores(name: str, x: Tensor, y: Tensor, scoring: Scoring, stream: tuple[int, int]) -> list[float]:
    """Return the scores of one module for B inputs with representations (B, n, p), NaN where there is none."""
    n = x.shape[1]
    if n > scoring.max_rows:
        kept = [_some_rows(n, scoring.max_rows, stream[0], stream[1] + place) for place in range(len(x))]
        x, y = (torch.stack([m[k] for m, k in zip(side, kept)]) for side in (x, y))
    try:
        return _alike(x, y, scoring.hsic)
    except FloatingPointError:
        if scoring.strict:
            raise FloatingPointError(f"activations of layer {name!r} are not finite") from None
    found = []
    for a, b in zip(x.split(1), y.split(1)):
        try:
            found += _alike(a, b, scoring.hsic)
        except FloatingPointError:
            log.warning("activations of layer %r are not finite; it has no score for this input", name)
            found.append(float("nan"))
    return found


def _alike(x: Tensor, y: Tensor, hsic: Hsic) -> list[float]:
    if hsic == "biased":
        return stacked_cka(x, y)
    return [linear_cka(a, b, hsic=hsic) for a, b in zip(x, y)]


def _some_rows(n: int, count: int, seed: int, item: int) -> Tensor:
    draw = seeds.torch_generator(seed, "cka-rows", item, n)
    return torch.randperm(n, generator=draw)[:count].sort().values
