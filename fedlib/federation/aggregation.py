"""Server-side averages: pure functions of the updates in client order, accumulated in float64."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fedlib.federation import masks as personal
from fedlib.federation.messages import Update
from fedlib.federation.model_state import State


class EmptyRound(RuntimeError):
    """No client of a round has a training sample."""


def weighted_mean(updates: Iterable[Update], previous: Mapping[str, Tensor]) -> State:
    """Average what the clients share, weighted by their numbers of samples.

    Element by element, over the clients whose mask is False there:

        w = sum_k n_k w_k / sum_k n_k

    Elements that no client shares keep their previous value. Floating buffers (BatchNorm's running statistics)
    are averaged like weights; integer buffers (its batch counter) take the largest value. Updates are added one
    after the other and not kept, so memory does not grow with the number of clients.

    Args:
        updates: by ascending client id (a list may have any order; it is sorted), which fixes the order of sums.
        previous: the global state before the round.

    Raises:
        EmptyRound: if all clients have zero samples.
        ValueError: if an iterator's clients do not ascend.
    """
    sums = {name: torch.zeros(old.shape, dtype=torch.float64) for name, old in previous.items()}
    weights: dict[str, Tensor | int] = dict.fromkeys(previous, 0)
    largest: State = {}
    clients = []
    total = 0
    for update in in_client_order(updates):
        clients.append(update.client)
        total += update.num_samples
        for name, sent in update.weights.items() if update.num_samples else ():
            mask = update.masks.get(name)
            if not previous[name].is_floating_point():
                largest[name] = torch.maximum(largest.get(name, sent), sent)
            elif mask is None or mask.dim() == 0:
                sums[name].add_(sent, alpha=update.num_samples)
                weights[name] = weights[name] + update.num_samples
            else:
                full = personal.restore({name: sent}, update.masks, {name: previous[name]})[name]
                sums[name].add_(full, alpha=update.num_samples)  # zero where it was not sent
                weights[name] = weights[name] + (~mask).double() * update.num_samples
    if total <= 0:
        names = ", ".join(map(str, clients))
        raise EmptyRound(f"no training sample in this round: clients {names or '(none)'} all have 0")
    return {
        name: largest.get(name, _quotient(sums[name], weights[name], old)) for name, old in previous.items()
    }


def in_client_order(updates: Iterable[Update]) -> Iterator[Update]:
    """Yield updates by ascending client id; a list is sorted, an iterator has to be so.

    Raises:
        ValueError: if an iterator's clients do not ascend.
    """
    last = -1
    for update in sorted(updates, key=lambda u: u.client) if isinstance(updates, Sequence) else updates:
        if update.client <= last:
            raise ValueError(f"update of client {update.client} came after client {last}")
        last = update.client
        yield update


def _quotient(sums: Tensor, weights: Tensor | int, old: Tensor) -> Tensor:
    if isinstance(weights, int):
        return (sums / weights).to(old.dtype) if weights else old
    return torch.where(weights > 0, sums / weights.clamp_min(1), old.double()).to(old.dtype)
