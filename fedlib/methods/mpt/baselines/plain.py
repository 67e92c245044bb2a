"""What needs no mathematics of its own: heads and prototypes as they are, and the two references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from fedlib.errors import InputError
from fedlib.methods.mpt.tracking import Native, Outcome, Round, State, Tracker


class Frozen(Tracker):
    """The prototype of the departure, kept."""

    name: ClassVar[str] = "frozen"
    compensates: ClassVar[str] = "no"

    def departure(self, everyone: Round, staying: Round, sent: Sequence[State]) -> None:
        """Store the prototype."""
        self.prototype = everyone.rare_mean.clone()

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return phat_t = p_{t0}."""
        return Outcome(prototype=self.prototype)


class ReEstimation(Tracker):
    """NCM re-estimation: the mean of the samples that remain; the last value when none do."""

    name: ClassVar[str] = "ncm"
    compensates: ClassVar[str] = "no"

    def departure(self, everyone: Round, staying: Round, sent: Sequence[State]) -> None:
        """Store the prototype."""
        self.prototype = everyone.rare_mean.clone()

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return phat_t = m_t."""
        if server.count:
            self.prototype = server.rare_mean.clone()
        return Outcome(prototype=self.prototype)


class Oracle(Tracker):
    """The mean of all rare samples, the departed ones included, under the current backbone: a reference."""

    name: ClassVar[str] = "oracle"
    compensates: ClassVar[str] = "reference"

    def __init__(self) -> None:
        self.prototype: Tensor | None = None  # set by the experiment, which alone can know it

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return p*_t."""
        if self.prototype is None:
            raise InputError("the oracle's prototype is not set")
        return Outcome(prototype=self.prototype)


class NoDeparture(Tracker):
    """The class means in the run in which nobody leaves: a reference."""

    name: ClassVar[str] = "no_departure"
    compensates: ClassVar[str] = "reference"

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return the mean of all samples."""
        return self.before(server, sent)


class Head(Tracker):
    """The trained linear head, as FedAvg leaves it."""

    name: ClassVar[str] = "fedavg"
    native: ClassVar[Native] = "head"
    embeds: ClassVar[bool] = False
    sends_means: ClassVar[bool] = False
    compensates: ClassVar[str] = "no"
    aggregates = False

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return the head of the round."""
        return Outcome(head=server.head)

    before = follow
