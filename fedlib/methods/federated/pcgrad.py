"""PCGrad on client updates: conflicting parts are projected out before averaging (Yu et al. 2020, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.federation.aggregation import in_client_order, weighted_mean
from fedlib.federation.messages import Update
from fedlib.federation.method import Server
from fedlib.methods.federated.fedavg import FedAvg

Granularity = Literal["model", "layer"]


@dataclass(frozen=True)
class PCGrad(FedAvg):
    """Clients' updates take the place of the tasks' gradients: G <- G - sum_i n_i / n d_i', d_i = G - w_i.

    Buffers are averaged. With no conflict this is FedAvg.

    Attributes:
        granularity: conflicts between whole ``model`` vectors, or tensor by tensor (``layer``).
        in_place: project on vectors that were already changed, as in the FedCKA authors' code; the published
            algorithm projects on the original ones.
        order_seed: of the random order in which a client meets the others.
    """

    name: ClassVar[str] = "pcgrad"

    granularity: Granularity = "model"
    in_place: bool = False
    order_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.granularity not in get_args(Granularity):
            raise InputError(
                f"granularity is {self.granularity!r}; allowed: {', '.join(get_args(Granularity))}"
            )

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Return the server after the round; ``memory`` counts rounds and conflicts.

        Its metrics are the ``conflicts`` and, for each pair of clients, the ``cosine/<one>/<other>`` of their
        whole updates; none where an update is zero.
        """
        listed = [update for update in in_client_order(self.weighed(updates)) if update.num_samples]
        mean = weighted_mean(listed, server.weights)
        rounds = int(server.memory.get("rounds", torch.tensor(0))) + 1
        names = [name for name, t in server.weights.items() if t.is_floating_point() and not _is_buffer(name)]
        groups = [names] if self.granularity == "model" else [[name] for name in names]
        total = sum(update.num_samples for update in listed)
        weights, conflicts = dict(mean), 0
        inner = torch.zeros(len(listed), len(listed), dtype=torch.float64)
        for index, group in enumerate(groups):
            start = torch.cat([server.weights[name].double().reshape(-1) for name in group])
            vectors = [
                start - torch.cat([update.weights[name].double().reshape(-1) for name in group])
                for update in listed
            ]
            for i, one in enumerate(vectors):
                for j in range(i + 1):
                    inner[i, j] += one @ vectors[j]
            projected, found = project(vectors, self.in_place, seeds.integer(self.order_seed, rounds, index))
            conflicts += found
            if not found:
                continue  # the mean itself, bit for bit
            step = sum(
                (u.num_samples / total * d for u, d in zip(listed, projected, strict=True)),
                torch.zeros_like(start),
            )
            sizes = [server.weights[name].numel() for name in group]
            for name, part in zip(group, (start - step).split(sizes), strict=True):
                weights[name] = part.reshape(server.weights[name].shape).to(server.weights[name].dtype)
        memory = {"rounds": torch.tensor(rounds), "conflicts": torch.tensor(conflicts)}
        metrics = {"conflicts": float(conflicts)} | _cosines(inner, [update.client for update in listed])
        return Server(weights, server.memory | memory, metrics)


def project(vectors: Sequence[Tensor], in_place: bool, seed: int) -> tuple[list[Tensor], int]:
    """Return the vectors without their conflicting parts, and the number of conflicts met.

        for j in a random order of the others: if <d_i', d_j> < 0: d_i' <- d_i' - <d_i', d_j> / ||d_j||^2 d_j

    Args:
        vectors: (P,) float64, one a client.
        in_place: see ``PCGrad``.
        seed: of the orders.
    """
    result = [vector.clone() for vector in vectors]
    conflicts = 0
    for i in range(len(result)):
        for j in seeds.rng(seed, i).permutation(len(vectors)):
            if i == j:
                continue
            other = result[j] if in_place else vectors[j]
            inner = result[i] @ other
            if inner < 0:
                result[i] = result[i] - inner / (other @ other + 1e-12) * other
                conflicts += 1
    return result, conflicts


def _cosines(inner: Tensor, clients: Sequence[int]) -> dict[str, float]:
    norms = inner.diagonal().sqrt()
    return {
        f"cosine/{clients[j]}/{clients[i]}": float(inner[i, j] / (norms[i] * norms[j]))
        for i in range(len(clients))
        for j in range(i)
        if norms[i] * norms[j] > 0
    }


def _is_buffer(name: str) -> bool:
    return name.endswith(("running_mean", "running_var"))
