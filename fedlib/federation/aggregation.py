"""Server-side averages: pure functions of the updates in client order, accumulated in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedlib.federation import masks as personal
from fedlib.federation.messages import Update
from fedlib.federation.model_state import State


class EmptyRound(RuntimeError):
    """No client of a round has a training sample."""


def weighted_mean(updates: Sequence[Update], previous: Mapping[str, Tensor]) -> State:
    """Average what the clients share, weighted by their numbers of samples.

    Element by element, over the clients whose mask is False there:

        w = sum_k n_k w_k / sum_k n_k

    Elements that no client shares keep their previous value. Floating buffers (BatchNorm's running statistics)
    are averaged like weights; integer buffers (its batch counter) take the largest value. The order of
    ``updates`` does not matter: they are summed by client id.

    Raises:
        EmptyRound: if all clients have zero samples.
    """
    ordered = sorted(updates, key=lambda update: update.client)
    total = sum(update.num_samples for update in ordered)
    if total <= 0:
        clients = ", ".join(str(update.client) for update in ordered)
        raise EmptyRound(f"no training sample in this round: clients {clients or '(none)'} all have 0")
    ordered = [update for update in ordered if update.num_samples]
    mean: State = {}
    for name, old in previous.items():
        sent = [update for update in ordered if name in update.weights]
        if not sent:
            mean[name] = old
        elif not old.is_floating_point():
            mean[name] = torch.stack([update.weights[name] for update in sent]).amax(0)
        elif any(name in update.masks for update in sent):
            mean[name] = _masked_mean(name, sent, old)
        else:
            accumulator = torch.zeros(old.shape, dtype=torch.float64)
            for update in sent:
                accumulator.add_(update.weights[name], alpha=update.num_samples)
            mean[name] = (accumulator / sum(update.num_samples for update in sent)).to(old.dtype)
    return mean


def _masked_mean(name: str, sent: Sequence[Update], old: Tensor) -> Tensor:
    numerator = torch.zeros(old.shape, dtype=torch.float64)
    denominator = torch.zeros(old.shape, dtype=torch.float64)
    for update in sent:
        mask = update.masks.get(name, torch.tensor(False)).expand(old.shape)
        full = personal.restore({name: update.weights[name]}, update.masks, {name: old})[name]
        numerator.add_(torch.where(mask, 0.0, full.double()), alpha=update.num_samples)
        denominator.add_((~mask).double(), alpha=update.num_samples)
    shared = denominator > 0
    return torch.where(shared, numerator / denominator.clamp_min(1), old.double()).to(old.dtype)
