"""FedAvg (McMahan et al. 2017) among the one-shot methods: with many rounds, and with one round of one epoch.

Both go through the round loop of :mod:`fedlib.federation.rounds`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fedlib import models
from fedlib.federation.ledger import SERVER, Ledger
from fedlib.federation.population import Clients
from fedlib.federation.rounds import Rounds, run_rounds
from fedlib.federation.tasks import Classification, ImageData
from fedlib.methods.federated.fedavg import FedAvg
from fedlib.methods.oneshot.base import Problem, Result, budget, check_labels


@dataclass(frozen=True)
class FedAvgRounds:
    """Settings; the defaults are 50 rounds of one epoch, as many epochs as the VCL-FPFT paper's clients train.

    That paper gives neither the local epochs nor the step size of its FedAvg row; both are our choice.

    Attributes:
        rounds: R.
        local_epochs: in each round.
        lr: of the clients' SGD.
        momentum: of the clients' SGD; its velocity starts anew in each round.
        weight_decay: of the clients' SGD.
        batch_size: at the clients.
    """

    rounds: int = 50
    local_epochs: int = 1
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    batch_size: int = 128

    @classmethod
    def one_round(cls, local_epochs: int = 1) -> FedAvgRounds:
        """Return FedAvg(1): one round, by default of "a strict single-epoch local update"."""
        return cls(rounds=1, local_epochs=local_epochs)

    @classmethod
    def small(cls) -> FedAvgRounds:
        """Return the budget for small images on a CPU."""
        return cls(rounds=10, lr=0.05, batch_size=32)


def fedavg_oneshot(
    architecture: str | Callable[[int], nn.Module],
    clients: Sequence[ImageData],
    problem: Problem,
    settings: FedAvgRounds,
    seed: int,
    folder: Path,
    *,
    workers: int | None = None,
) -> Result:
    """Run FedAvg and return its last global model.

    Args:
        architecture: name of :func:`fedlib.models.available`, or a function from a seed to a new model.
        clients: their data.
        problem: what the data are.
        settings: see :class:`FedAvgRounds`.
        seed: of the experiment.
        folder: of the run's files; an interrupted run goes on from there.
        workers: processes; see :func:`fedlib.federation.rounds.run_rounds`.

    Raises:
        InputError: settings out of range, an unknown architecture, or a label that is no class.
        EmptyRound: no client has a sample.
    """
    for client, data in enumerate(clients):
        check_labels(data.labels, problem.num_classes, client)

    def build(initial: int) -> nn.Module:
        if not isinstance(architecture, str):
            return architecture(initial)
        return models.build(
            architecture,
            num_classes=problem.num_classes,
            in_channels=problem.channels,
            image_size=problem.image_size,
            seed=initial,
        )

    method = FedAvg(
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        local_epochs=settings.local_epochs,
        batch_size=settings.batch_size,
    )
    task = Classification(build, problem.num_classes)
    device = clients[0].device if clients else "cpu"
    rounds = Rounds(settings.rounds, seed, keep="last", device=device)
    run = run_rounds(task, method, Clients(clients), rounds, folder, workers=workers)
    weights = run.weights(settings.rounds)
    model = build(seed)
    model.load_state_dict(weights)
    ledger = Ledger(settings.rounds)
    for round in range(1, settings.rounds + 1):
        for client in range(len(clients)):  # what is sent has the same size in every round
            ledger.send(SERVER, client, round, "weights", weights)
            ledger.send(client, SERVER, round, "weights", weights)
    table = run.metrics()
    losses = table[table.metric == "train_loss"].groupby("round")["value"].mean()
    history = [{"round": float(round), "train_loss": float(loss)} for round, loss in losses.items()]
    name = f"fedavg({settings.rounds})"
    return Result(name, model.to(device).eval(), history, ledger, budget(problem, settings, len(clients)))
