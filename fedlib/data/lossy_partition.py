"""The Dirichlet split of VCL-FPFT's public code, which loses samples and repeats others (Barros et al. 2026).

The code draws *per client over classes* and does not normalise over the clients: client k takes a share theta_kc
of class c, and the shares of a class need not add up to one. If they add up to less, the rest of the class is
held by nobody; if to more, the class runs out and late clients get too little. Clients that end up small are then
filled with copies of other clients' samples. It is needed to compare with that code, and for nothing else.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from fedlib import seeds
from fedlib.data.partition import Holdings, check_labels, check_positive, check_whole
from fedlib.errors import InputError


class LossySplit(Holdings):
    """Holdings of which samples may be missing or held more than once."""

    @cached_property
    def coverage(self) -> float:
        """Share of all samples that at least one client holds."""
        return len(np.unique(np.concatenate(self.clients))) / self.total

    @cached_property
    def duplicates(self) -> int:
        """Number of held samples beyond the first copy of each."""
        everything = np.concatenate(self.clients)
        return len(everything) - len(np.unique(everything))


def dirichlet_code(
    labels: np.ndarray, num_clients: int, alpha: float, seed: int, min_size: int = 50
) -> LossySplit:
    """Give each client shares of the classes drawn from Dirichlet(alpha, ..., alpha), as the public code does.

    Args:
        labels: class of each sample, (N,).
        num_clients: K.
        alpha: concentration, > 0.
        seed: of the experiment.
        min_size: clients with fewer samples are filled up to it with copies of other clients' samples.

    Raises:
        InputError: a value out of range, or a client to fill up while all others hold nothing.
    """
    labels, num_clients = check_labels(labels), check_whole("num_clients", num_clients, 1)
    alpha, min_size = check_positive("alpha", alpha), check_whole("min_size", min_size, 0)
    rng = seeds.rng(seed, "partition", "dirichlet_code")
    class_sizes = np.unique(labels, return_counts=True)[1]
    theta = rng.dirichlet(
        np.full(len(class_sizes), alpha), size=num_clients
    )  # (K, C): rows, not columns, sum to 1
    wanted = np.floor(theta * class_sizes).astype(np.int64)
    ends = np.minimum(np.cumsum(wanted, axis=0), class_sizes)  # first come, first served
    starts = np.concatenate([np.zeros((1, len(class_sizes)), dtype=np.int64), ends[:-1]])
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    offsets = np.concatenate([[0], np.cumsum(class_sizes)[:-1]])
    held = [
        np.concatenate([by_class[o + a : o + b] for o, a, b in zip(offsets, starts[k], ends[k])])
        for k in range(num_clients)
    ]
    for k, own in enumerate(held):
        if (missing := min_size - len(own)) > 0:
            others = np.concatenate([np.empty(0, dtype=np.int64), *held[:k], *held[k + 1 :]])
            if len(others) == 0:
                raise InputError(
                    f"client {k} holds {len(own)} of min_size = {min_size} samples and no other client holds any; "
                    "lower min_size or num_clients, or raise alpha"
                )
            held[k] = np.concatenate([own, rng.choice(others, missing, replace=missing > len(others))])
    return LossySplit(tuple(np.sort(part) for part in held), len(labels))
