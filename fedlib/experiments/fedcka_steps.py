"""One round of FedCKA on digits, taken apart: what each client trains, scores, keeps and sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from fedlib import seeds
from fedlib.experiments import fedcka_digits as digits
from fedlib.experiments.federated import Bench, trajectory_of
from fedlib.experiments.settings import FedCKASettings
from fedlib.experiments.study import Study
from fedlib.federation import masks as personal
from fedlib.federation.engine import one_thread
from fedlib.federation.messages import Broadcast, Update
from fedlib.federation.model_state import FlatModel, State, model_state
from fedlib.federation.tasks import Classification, ImageData
from fedlib.methods.fedcka.activations import Rows, called_modules, recording
from fedlib.methods.fedcka.layers import Layer, partition
from fedlib.methods.federated.fedavg import FedAvg
from fedlib.runs import Run


@dataclass(frozen=True)
class Steps:
    """Five clients with digits of one kind each, and the pieces of a round.

    Attributes:
        settings: of the experiment.
        seed: of data, training and choice of inputs.
    """

    settings: FedCKASettings
    seed: int = 0

    @cached_property
    def bench(self) -> Bench:
        """The data set with these settings."""
        return Bench.of(self.settings)

    @cached_property
    def task(self) -> Classification:
        """The learning task."""
        return self.bench.task()

    @cached_property
    def clients(self) -> list[ImageData]:
        """The clients' training data, in the order of ``names``."""
        return digits.Domains(self.bench).train(self.seed)

    @property
    def names(self) -> list[str]:
        """What each client does to its pictures."""
        return list(digits.VIEWS)

    def method(self, name: str, **changes: Any) -> FedAvg:
        """Return a method of ``fedcka_digits.METHODS``; ``changes`` replace its options."""
        return digits.method_of(self.settings, self.bench, name, changes)

    def start(self) -> State:
        """Return the untrained global model."""
        return model_state(self.bench.build_model(self.seed))

    def model(self, weights: State) -> nn.Module:
        """Return a network with these weights, in evaluation mode."""
        network = self.bench.build_model(self.seed)
        network.load_state_dict(weights)
        return network.eval()

    def layers(self) -> tuple[Layer, ...]:
        """Return the network's layers, see ``fedlib.methods.fedcka.layers.partition``."""
        network = self.model(self.start())
        one = self.inputs(0, 1)[0]
        return partition(network, called_modules(network, lambda model: self.task.predict(model, one)))

    def inputs(self, client: int, count: int) -> list[Any]:
        """Return that many training inputs of a client, each a batch of one, drawn without replacement."""
        data = self.clients[client]
        chosen = seeds.rng(self.seed, "steps-inputs", client).choice(len(data), size=count, replace=False)
        return [data.batch(torch.tensor([int(index)])) for index in chosen]

    def updates(
        self, method: FedAvg, weights: State, round: int, memories: Sequence[State] | None = None
    ) -> list[Update]:
        """Return the updates of all clients in a round, as the round loop computes them.

        Args:
            method: how clients train and what they keep.
            weights: the global model.
            round: number, from 1.
            memories: what each client kept from the round before; None is nothing.
        """
        scratch, broadcast = FlatModel(self.task.build_model(self.seed)), Broadcast(round, weights)
        kept = memories or [{} for _ in self.clients]
        with one_thread():
            return [
                method.client_update(self.task, scratch, client, data, broadcast, kept[client], self.seed)
                for client, data in enumerate(self.clients)
            ]


def trained(update: Update, like: State) -> State:
    """Return the model that a client trained, what it sends and what it keeps; ``like`` is any whole model."""
    own = {name.removeprefix("own/"): t for name, t in update.memory.items() if name.startswith("own/")}
    sent = personal.restore(update.weights, update.masks, like)
    return {name: own.get(name, tensor) for name, tensor in sent.items()}


def differing_weights(first: Run, second: Run) -> int:
    """Return how many values of the last global models of two runs do not have the same bits."""
    one, other = (trajectory_of(run) for run in (first, second))
    a, b = (t.weights(max(t.rounds)) for t in (one, other))
    return sum(int(np.sum(_bits(a[name]) != _bits(b[name]))) for name in a)


def shares(settings: FedCKASettings, variants: dict[str, tuple[str, dict[str, Any]]]) -> Study:
    """Run variants of FedCKA on digits; columns as ``fedcka_digits.compare``, and ``variant``.

    Args:
        settings: of the experiment.
        variants: by title the method's name in ``fedcka_digits.METHODS`` and what is changed in it.

    Raises:
        InputError: unknown method, or an option out of range.
    """
    studies = [digits.compare(settings, [name], **changes) for name, changes in variants.values()]
    runs = tuple(run for study in studies for run in study.runs)
    parts = [study.metrics.assign(variant=title) for title, study in zip(variants, studies, strict=True)]
    return Study(runs, pd.concat(parts, ignore_index=True))


def row_shapes(
    network: nn.Module, layers: Sequence[Layer], one: Any, rows: Rows
) -> dict[str, tuple[int, int]]:
    """Return the shape (n, p) of each layer's representation of one input, by the name of its module.

    Args:
        network: the model.
        layers: its layers.
        one: batch of one input, images first.
        rows: see ``fedlib.methods.fedcka.activations``.
    """
    with recording(network, {name for layer in layers for name in layer.modules}, rows) as found:
        network(one[0])
    shapes = {name: matrices[0].shape for name, matrices in found.items()}
    return {name: (int(n), int(p)) for name, (n, p) in shapes.items()}


def _bits(tensor: torch.Tensor) -> np.ndarray:
    flat: np.ndarray = tensor.contiguous().numpy().reshape(-1)
    return flat.view(f"u{flat.itemsize}")
