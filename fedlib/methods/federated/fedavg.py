"""Federated averaging (McMahan et al. 2017), and the hooks by which every other method differs from it.

A method is a frozen description: what it keeps between rounds travels in ``Update.memory`` (at the client) and
``Server.memory`` (at the server), so that one client update is a pure function of the broadcast, the client's
memory and data, the round and the seed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.federation import masks as personal
from fedlib.federation.aggregation import weighted_mean
from fedlib.federation.messages import Broadcast, Update
from fedlib.federation.method import Server
from fedlib.federation.model_state import FlatModel, State
from fedlib.federation.tasks import Data, Task, batches

BatchNorm = Literal["global", "local", "frozen"]


@dataclass
class Local:
    """One client in one round, as the hooks of a method see it.

    Attributes:
        client: client id.
        round: round, from 1.
        seed: seed of the run.
        model: the model in training; ``model.values`` and ``model.grad`` are its parameter vectors (P,).
        start: (P,) the global parameters of this round.
        broadcast: the server's message.
        memory: what the client kept from its last round; hooks may replace entries.
        data: training data.
        steps: optimizer steps taken so far.
    """

    client: int
    round: int
    seed: int
    model: FlatModel
    start: Tensor
    broadcast: Broadcast
    memory: State
    data: Data
    steps: int = 0


@dataclass(frozen=True)
class FedAvg:
    """Federated averaging (McMahan et al. 2017, Algorithm 1) with SGD at the clients.

    Attributes:
        lr: step size.
        momentum: momentum of SGD; its velocity starts anew in each round.
        weight_decay: L2 penalty of SGD.
        local_epochs: passes over the client's data in a round.
        batch_size: samples in a batch; the last batch of a pass may be smaller.
        batch_norm: ``global``: clients' running statistics are averaged like weights; ``local``: each client
            keeps its own (affine parameters stay shared), so the global model's are those of the start and only
            personal models are worth evaluating; ``frozen``: they keep their initial values.
    """

    name: ClassVar[str] = "fedavg"

    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    local_epochs: int = 1
    batch_size: int = 32
    batch_norm: BatchNorm = "global"

    def __post_init__(self) -> None:
        for name, ok, allowed in (
            ("lr", self.lr > 0, "above 0"),
            ("momentum", 0 <= self.momentum < 1, "at least 0 and below 1"),
            ("weight_decay", self.weight_decay >= 0, "at least 0"),
            ("local_epochs", self.local_epochs >= 1, "at least 1"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
            ("batch_norm", self.batch_norm in get_args(BatchNorm), ", ".join(get_args(BatchNorm))),
        ):
            if not ok:
                raise InputError(f"{name} is {getattr(self, name)!r}; allowed: {allowed}")

    # --- what other methods change -----------------------------------------------------------------------

    def broadcast_statistics(self, server: Server) -> State:
        """Return tensors that go to every client beside the global model."""
        return {}

    def loss(self, task: Task, local: Local, batch: Any) -> Tensor:
        """Return the local training loss () of a batch."""
        return task.loss(local.model.module, batch)

    def correct_gradient(self, local: Local) -> None:
        """Change ``local.model.grad`` (P,) in place after a backward pass."""

    def masks(self, local: Local) -> personal.Masks:
        """Return what the client keeps for itself, after its training."""
        if self.batch_norm == "local":
            return {name: torch.tensor(True) for name in batch_norm_buffers(local.model.module)}
        return {}

    def statistics(self, task: Task, local: Local) -> State:
        """Return tensors that the client sends beside its model, after its training."""
        return {}

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Return the server after the round: w = sum_k n_k w_k / sum_k n_k over the clients that share."""
        return Server(weighted_mean(updates, server.weights), server.memory)

    def personal_weights(self, weights: State, memory: State) -> State:
        """Return the model that a client with ``memory`` uses: its own tensors in the global model."""
        kept_masks, kept = split_memory(memory)
        return personal.inject(weights, kept, kept_masks)

    # --- the client's part of a round --------------------------------------------------------------------

    def client_update(
        self,
        task: Task,
        model: FlatModel,
        client: int,
        data: Data,
        broadcast: Broadcast,
        memory: State,
        seed: int,
    ) -> Update:
        """Train on one client and return its update.

        A pure function of its arguments; ``model`` is scratch space that is overwritten.

        Raises:
            FloatingPointError: if the loss or the model is not finite, naming client and round.
        """
        model.load(self.personal_weights(broadcast.weights, memory))
        local = Local(
            client=client,
            round=broadcast.round,
            seed=seed,
            model=model,
            start=model.vector_of(broadcast.weights),
            broadcast=broadcast,
            memory={name: t for name, t in memory.items() if not name.startswith(("mask/", "own/"))},
            data=data,
        )
        metrics = self.train(task, local) if len(data) else {}
        chosen = self.masks(local)
        state = model.state()
        personal.check(chosen, state)
        return Update(
            client=client,
            num_samples=len(data),
            weights=personal.shared_part(state, chosen),
            masks=chosen,
            statistics=self.statistics(task, local),
            metrics=metrics,
            memory=local.memory | join_memory(chosen, state),
        )

    def train(self, task: Task, local: Local) -> dict[str, float]:
        """Run the local epochs on ``local.model`` and return the mean training loss.

        Raises:
            FloatingPointError: if the loss or the model is not finite, naming client and round.
        """
        model = local.model
        model.module.train()
        norms = batch_norm_layers(model.module)
        velocity: Tensor | None = None
        total = torch.zeros((), device=model.values.device)
        with seeds.torch_global(local.seed, "dropout", local.round, local.client):
            for epoch in range(self.local_epochs):
                order = seeds.torch_generator(local.seed, "batches", local.round, local.client, epoch)
                for batch, size in batches(local.data, self.batch_size, order):
                    # One sample has no batch statistics: it trains with the running ones.
                    for layer in norms:
                        layer.train(self.batch_norm != "frozen" and size > 1)
                    model.grad.zero_()
                    loss = self.loss(task, local, batch)
                    loss.backward()
                    self.correct_gradient(local)
                    velocity = self.sgd_step(model, velocity)
                    local.steps += 1
                    total += loss.detach()
        mean_loss = float(total) / local.steps
        if not torch.isfinite(total + model.values.sum()):  # a sum is finite only if all its terms are
            raise FloatingPointError(
                f"client {local.client}, round {local.round}: the model or its loss ({mean_loss}) is not finite; "
                f"a smaller lr than {self.lr} may help"
            )
        return {"train_loss": mean_loss, "steps": float(local.steps)}

    def sgd_step(self, model: FlatModel, velocity: Tensor | None) -> Tensor | None:
        """Take one step of SGD with momentum and weight decay, and return the new velocity (P,).

            g <- grad + weight_decay w,    v <- momentum v + g  (v = g at first),    w <- w - lr v

        The same bits as torch.optim.SGD, written out because on one vector it takes three operations, and the
        first optimizer of a process costs over a second of imports.
        """
        with torch.no_grad():
            step = model.grad
            if self.weight_decay:
                step = step.add(model.values, alpha=self.weight_decay)
            if self.momentum:
                velocity = step.clone() if velocity is None else velocity.mul_(self.momentum).add_(step)
                step = velocity
            model.values.add_(step, alpha=-self.lr)
        return velocity


def batch_norm_layers(module: nn.Module) -> list[nn.Module]:
    """Return the BatchNorm layers of a model."""
    return [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


def batch_norm_buffers(module: nn.Module) -> list[str]:
    """Return the state names of all BatchNorm running statistics and counters."""
    return [
        f"{prefix}.{name}" if prefix else name
        for prefix, layer in module.named_modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm)
        for name, _ in layer.named_buffers(recurse=False)
    ]


def split_memory(memory: State) -> tuple[personal.Masks, State]:
    """Return the masks and the personal tensors that a client keeps in its memory."""
    return (
        {name.removeprefix("mask/"): tensor for name, tensor in memory.items() if name.startswith("mask/")},
        {name.removeprefix("own/"): tensor for name, tensor in memory.items() if name.startswith("own/")},
    )


def join_memory(chosen: personal.Masks, state: State) -> State:
    """Return the memory entries that keep the masked tensors of ``state``; see ``split_memory``."""
    kept = {name: mask for name, mask in chosen.items() if bool(mask.any())}
    return {f"mask/{name}": mask for name, mask in kept.items()} | {
        f"own/{name}": state[name] for name in kept
    }
