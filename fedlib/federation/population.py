"""Who takes part in a round, and with which data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.federation.tasks import Data


class Population(Protocol):
    """The clients of a federation over time. Rounds count from 1."""

    def __len__(self) -> int:
        """Return the number of clients that ever take part."""

    def present(self, round: int) -> tuple[int, ...]:
        """Return the ids of the clients that can take part in ``round``, ascending."""

    def data(self, client: int, round: int) -> Data:
        """Return the training data of ``client`` in ``round``."""


@dataclass(frozen=True)
class Clients:
    """Clients with fixed data, some of which leave for good.

    Attributes:
        datasets: the data of client 0, 1, ...
        last_round: the last round of each client that leaves.
        after: data that replace a client's own in the rounds after ``changes_after``; by client id.
        changes_after: last round with the original data.
    """

    datasets: Sequence[Data]
    last_round: Mapping[int, int] = field(default_factory=dict)
    after: Mapping[int, Data] = field(default_factory=dict)
    changes_after: int = 0

    def __post_init__(self) -> None:
        for client in (*self.last_round, *self.after):
            if not 0 <= client < len(self.datasets):
                raise InputError(f"client is {client}; allowed: 0 to {len(self.datasets) - 1}")

    def __len__(self) -> int:
        return len(self.datasets)

    def present(self, round: int) -> tuple[int, ...]:
        """Return the clients that have not left."""
        return tuple(c for c in range(len(self.datasets)) if round <= self.last_round.get(c, round))

    def data(self, client: int, round: int) -> Data:
        """Return the client's data in this round."""
        if round > self.changes_after and client in self.after:
            return self.after[client]
        return self.datasets[client]


def sample_clients(present: Sequence[int], participation: float, seed: int, round: int) -> tuple[int, ...]:
    """Return the clients of a round: a share of those present, at least one, without replacement.

    Args:
        present: ids to choose from.
        participation: share in (0, 1]; the number is rounded to the nearest integer.
        seed: seed of the run.
        round: round, from 1.

    Raises:
        InputError: if nobody is present or ``participation`` is out of range.
    """
    if not 0 < participation <= 1:
        raise InputError(f"participation is {participation}; allowed: above 0 and at most 1")
    if not present:
        raise InputError(f"round {round} has no client: all have left")
    count = max(1, round_half_up(participation * len(present)))
    if count == len(present):
        return tuple(sorted(present))
    chosen = seeds.rng(seed, "participation", round).choice(sorted(present), size=count, replace=False)
    return tuple(sorted(int(client) for client in chosen))


def round_half_up(value: float) -> int:
    """Round to the nearest integer, halves upwards (Python's ``round`` takes halves to even numbers)."""
    return int(value + 0.5)
