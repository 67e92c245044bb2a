"""What the round loop asks of a method."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedlib.federation.messages import Broadcast, Update
from fedlib.federation.model_state import FlatModel, State
from fedlib.federation.tasks import Task


@dataclass
class Server:
    """What the server keeps: the global model and the method's own tensors; and its metrics of the last round."""

    weights: State
    memory: State = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


class Method(Protocol):
    """A federated method; ``fedlib.methods.federated.fedavg.FedAvg`` is the one that others start from."""

    def broadcast_statistics(self, server: Server) -> State:
        """Return tensors that go to every client beside the global model."""

    def client_update(
        self,
        task: Task,
        model: FlatModel,
        client: int,
        data: Any,
        broadcast: Broadcast,
        memory: State,
        seed: int,
    ) -> Update:
        """Return a client's update: a pure function, with ``model`` as scratch space."""

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Return the server after the round.

        A pure function. Updates come by ascending client id and one at a time; a method that needs them all at
        once makes a list of them.
        """

    def personal_weights(self, weights: State, memory: State) -> State:
        """Return the model that a client with ``memory`` uses: its own tensors in the global model."""
