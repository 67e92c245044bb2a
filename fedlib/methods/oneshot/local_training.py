"""How each client trains its model before it is sent (protocol of Kang et al. 2023, FedISCA).

SGD with a step size that falls to a tenth at half and at three quarters of the epochs; a tenth of the client's
data is held back and picks the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedlib import models, seeds
from fedlib.errors import InputError
from fedlib.federation.model_state import State, model_state
from fedlib.federation.tasks import ImageData, batches
from fedlib.methods.federated.fedavg import batch_norm_layers
from fedlib.methods.oneshot.base import Problem, at_least, check, check_labels, logits


@dataclass(frozen=True)
class LocalTraining:
    """Settings of the protocol; the defaults are the paper's.

    Attributes:
        epochs: passes over the training part.
        batch_size: samples in a batch; the last one may be smaller.
        lr: first step size; a tenth of it from half of the epochs on, a hundredth from three quarters on.
        momentum: of SGD.
        weight_decay: L2 penalty of SGD.
        validation: share of the data that is held back, rounded down.
    """

    epochs: int = 100
    batch_size: int = 128
    lr: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 5e-4
    validation: float = 0.1

    def __post_init__(self) -> None:
        at_least(self, {"epochs": 1, "batch_size": 1, "momentum": 0.0, "weight_decay": 0.0})
        check(
            self,
            lr=(self.lr > 0, "above 0"),
            validation=(0 <= self.validation < 1, "at least 0 and below 1"),
        )

    @classmethod
    def small(cls) -> LocalTraining:
        """Return the budget for small images on a CPU."""
        return cls(epochs=8, batch_size=32, lr=0.02)


def step_decay(optimizer: torch.optim.Optimizer, epochs: int) -> torch.optim.lr_scheduler.MultiStepLR:
    """Return the schedule: a tenth from half, a hundredth from three quarters of the epochs on.

    The first epoch always has the full step size, and no epoch falls by both factors at once.
    """
    half = max(1, epochs // 2)
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, [half, max(half + 1, epochs * 3 // 4)])


def train_local(
    model: nn.Module, data: ImageData, settings: LocalTraining, seed: int, client: int = 0
) -> list[dict[str, float]]:
    """Train ``model`` in place on one client's data and return a row for each epoch, accuracy in percent.

    The state of the epoch with the best validation accuracy is kept (the first of equals); the last one where the
    held-back share is less than one sample. The model ends in evaluation mode.

    Raises:
        InputError: a client without data.
        FloatingPointError: the loss is not finite, naming the client.
    """
    if not len(data):
        raise InputError(f"client {client} has 0 samples; allowed: at least one")
    order = seeds.rng(seed, "validation", client).permutation(len(data))
    held_back = int(settings.validation * len(data))
    test, train = data.subset(order[:held_back]), data.subset(order[held_back:])
    optimizer = torch.optim.SGD(
        model.parameters(), settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
    )
    schedule = step_decay(optimizer, settings.epochs)
    norms = batch_norm_layers(model)
    history: list[dict[str, float]] = []
    best: tuple[float, State] | None = None
    with seeds.torch_global(seed, "dropout", client):
        for epoch in range(settings.epochs):
            model.train()
            total = 0.0
            for (x, y), size in batches(
                train, settings.batch_size, seeds.torch_generator(seed, "batches", client, epoch)
            ):
                for layer in norms:  # one sample has no batch statistics: it trains with the running ones
                    layer.train(size > 1)
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                total += float(loss.detach()) * size
            schedule.step()
            row = {"epoch": float(epoch), "train_loss": total / len(train)}
            if not np.isfinite(total):
                raise FloatingPointError(
                    f"client {client}: the loss is not finite in epoch {epoch}; "
                    f"a smaller lr than {settings.lr} may help"
                )
            if held_back:
                hits = logits(model, test).argmax(1) == test.labels
                row["validation_accuracy"] = 100 * float(hits.mean())
                if best is None or row["validation_accuracy"] > best[0]:
                    best = row["validation_accuracy"], model_state(model)
            history.append(row)
    if best is not None:
        model.load_state_dict(best[1])
    model.eval()
    return history


def train_clients(
    architectures: Sequence[str],
    clients: Sequence[ImageData],
    problem: Problem,
    settings: LocalTraining,
    seed: int,
) -> list[models.Classifier]:
    """Build and train one model for each client; each has its own initial weights.

    Args:
        architectures: a name of :func:`fedlib.models.available` for each client, or one for all.
        clients: their data.
        problem: what the data are.
        settings: of the training.
        seed: of the experiment; client k's model depends on it, on k and on the client's data alone.

    Raises:
        InputError: other numbers of names than clients, or as :func:`train_models`.
    """
    if clients and len(architectures) not in (1, len(clients)):
        raise InputError(
            f"{len(architectures)} architectures for {len(clients)} clients; allowed: one for all, or one for each"
        )

    def build(client: int, initial: int) -> models.Classifier:
        return models.build(
            architectures[client if len(architectures) > 1 else 0],
            num_classes=problem.num_classes,
            in_channels=problem.channels,
            image_size=problem.image_size,
            seed=initial,
        )

    return train_models(build, clients, problem, settings, seed)


def train_models(
    build: Callable[[int, int], models.Classifier],
    clients: Sequence[ImageData],
    problem: Problem,
    settings: LocalTraining,
    seed: int,
) -> list[models.Classifier]:
    """Train a model of each client.

    Args:
        build: from a client and the seed of its initial weights to its model.
        clients: their data.
        problem: what the data are.
        settings: of the training.
        seed: of the experiment; client k's model depends on it, on k and on the client's data alone.

    Raises:
        InputError: no client, a client without data, or a label that is no class.
    """
    if not clients:
        raise InputError("there are 0 clients; allowed: at least one")
    for client, data in enumerate(clients):
        check_labels(data.labels, problem.num_classes, client)
    trained = []
    for client, data in enumerate(clients):
        model = build(client, seeds.integer(seed, "client", client)).to(data.device)
        train_local(model, data, settings, seed, client)
        trained.append(model)
    return trained
