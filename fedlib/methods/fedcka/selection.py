"""Which layers become personal, from their scores (Verhoog et al. 2026, section III)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Literal

from fedlib.errors import InputError
from fedlib.methods.fedcka.layers import Layer

Schedule = Literal["incremental", "per_round", "once"]


def by_threshold(layers: Sequence[Layer], scores: Mapping[str, float], tau: float) -> set[str]:
    """Return the layers with s_l < tau. Not cumulative: a layer may go back to being shared.

    Args:
        layers: all layers.
        scores: s_l by layer name; layers without one are shared.
        tau: threshold in [0, 1].

    Raises:
        InputError: ``tau`` out of range.
    """
    if not 0 <= tau <= 1:
        raise InputError(f"tau is {tau}; allowed: 0 to 1")
    return {layer.name for layer in layers if scores.get(layer.name, math.inf) < tau}


def by_percentage(
    layers: Sequence[Layer],
    scores: Mapping[str, float],
    previous: Set[str],
    rho: float,
    *,
    schedule: Schedule = "incremental",
    step: float = 0.02,
    first: bool = False,
    exact_limits: bool = False,
) -> set[str]:
    """Return the previously personal layers and further ones, lowest score first, until a share rho is reached.

    Whole layers are taken, so the realised share of the parameters can exceed the target. Ties go by layer order.

    Args:
        layers: all layers.
        scores: s_l by layer name.
        previous: layers that are personal already; they stay so.
        rho: share of the parameters, in [0, 1].
        schedule: ``incremental`` adds ``step`` of all parameters a round until the share rho is reached;
            ``per_round`` is the paper's formula read literally: the lowest-scoring layers that hold a share rho in
            this round, united with the earlier ones, so the share can grow beyond rho; ``once`` chooses in the
            first round only.
        step: share of all parameters that ``incremental`` adds in a round.
        first: whether this is the first round with masks.
        exact_limits: at rho = 1 layers without a score become personal too.

    Raises:
        InputError: ``rho`` out of range or ``step`` not above 0.
    """
    if not 0 <= rho <= 1:
        raise InputError(f"rho is {rho}; allowed: 0 to 1")
    if schedule == "incremental" and not step > 0:
        raise InputError(f"step is {step}; allowed: above 0")
    if exact_limits and rho == 1 and schedule != "incremental":
        return {layer.name for layer in layers}
    total = sum(layer.parameters for layer in layers)
    ranked = sorted((layer for layer in layers if layer.name in scores), key=lambda layer: scores[layer.name])
    if schedule == "incremental":
        held = sum(layer.parameters for layer in layers if layer.name in previous)
        target = min(_ceil(step * total), _ceil(rho * total) - held)
        ranked = [layer for layer in ranked if layer.name not in previous]
    elif schedule == "once" and not first:
        target = 0
    else:
        target = _ceil(rho * total)
    chosen, count = set(previous), 0
    for layer in ranked:
        if count >= target:
            break
        chosen.add(layer.name)
        count += layer.parameters
    return chosen


def _ceil(value: float) -> int:
    return math.ceil(value - 1e-9)
