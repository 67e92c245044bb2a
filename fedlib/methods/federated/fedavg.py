"""Federated averaging (McMahan et al. 2017), and the hooks by which every other method differs from it.

A method is a frozen description: what it keeps between rounds travels in ``Update.memory`` (at the client) and
``Server.memory`` (at the server), so that one client update is a pure function of the broadcast, the client's
memory and data, the round and the seed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import cos, pi
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.federation import masks as personal
from fedlib.federation.aggregation import in_client_order, weighted_mean
from fedlib.federation.messages import Broadcast, Update
from fedlib.federation.method import Server
from fedlib.federation.model_state import FlatModel, State
from fedlib.federation.tasks import Data, Task, batches
from fedlib.methods.federated.optimizers import SGD, AdamW, Optimizer

BatchNorm = Literal["global", "local", "frozen"]
OptimizerName = Literal["sgd", "adamw"]
OptimizerState = Literal["reset", "keep"]


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
        total_steps: optimizer steps of the round.
        steps: optimizer steps taken so far.
        metrics: numbers for the log that hooks add.
    """

    client: int
    round: int
    seed: int
    model: FlatModel
    start: Tensor
    broadcast: Broadcast
    memory: State
    data: Data
    total_steps: int
    steps: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FedAvg:
    """Federated averaging (McMahan et al. 2017, Algorithm 1) with SGD or AdamW at the clients.

    Attributes:
        lr: step size.
        momentum: momentum of SGD.
        weight_decay: L2 penalty of SGD, or AdamW's decoupled one.
        local_epochs: passes over the client's data in a round.
        batch_size: samples in a batch; the last batch of a pass may be smaller.
        batch_norm: ``global``: clients' running statistics are averaged like weights; ``local``: each client
            keeps its own (affine parameters stay shared), so the global model's are those of the start and only
            personal models are worth evaluating; ``frozen``: they keep their initial values.
        optimizer: ``sgd`` or ``adamw``.
        optimizer_state: ``reset``: momentum starts anew in each round; ``keep``: a client goes on with its own.
        clip: largest norm of the gradient vector; None is no limit.
        total_rounds: rounds over which the step size falls along half a cosine, from lr to lr_floor * lr.
        lr_floor: see ``total_rounds``; 1 is a constant step size.
        warmup_steps: steps of the first round over which the step size rises linearly from 0.
        client_weights: n_k of the averages by client id, such as numbers of scenes, or ones; none: the clients'
            numbers of training samples. A client without a sample counts in no average.
    """

    name: ClassVar[str] = "fedavg"

    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    local_epochs: int = 1
    batch_size: int = 32
    batch_norm: BatchNorm = "global"
    optimizer: OptimizerName = "sgd"
    optimizer_state: OptimizerState = "reset"
    clip: float | None = None
    total_rounds: int = 1
    lr_floor: float = 1.0
    warmup_steps: int = 0
    client_weights: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, ok, allowed in (
            ("lr", self.lr > 0, "above 0"),
            ("momentum", 0 <= self.momentum < 1, "at least 0 and below 1"),
            ("weight_decay", self.weight_decay >= 0, "at least 0"),
            ("local_epochs", self.local_epochs >= 1, "at least 1"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
            ("batch_norm", self.batch_norm in get_args(BatchNorm), ", ".join(get_args(BatchNorm))),
            ("optimizer", self.optimizer in get_args(OptimizerName), ", ".join(get_args(OptimizerName))),
            (
                "optimizer_state",
                self.optimizer_state in get_args(OptimizerState),
                ", ".join(get_args(OptimizerState)),
            ),
            ("clip", self.clip is None or self.clip > 0, "above 0, or None"),
            ("total_rounds", self.total_rounds >= 1, "at least 1"),
            ("lr_floor", 0 <= self.lr_floor <= 1, "0 to 1"),
            ("warmup_steps", self.warmup_steps >= 0, "at least 0"),
            (
                "client_weights",
                all(isinstance(n, int) and n >= 1 for n in self.client_weights),
                "integers >= 1",
            ),
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

    def step_scale(self, local: Local) -> Tensor | None:
        """Return factors (P,) of the parameter changes of the coming step; None leaves them as they are.

        The step itself is scaled: scaling gradients would change nothing under an optimizer that normalises them.
        """
        return None

    def batch_statistics(self, local: Local) -> bool:
        """Return whether BatchNorm layers use and update batch statistics in the coming step."""
        return self.batch_norm != "frozen"

    def masks(self, task: Task, local: Local) -> personal.Masks:
        """Return what the client keeps for itself, after its training."""
        if self.batch_norm == "local":
            return {name: torch.tensor(True) for name in batch_norm_buffers(local.model.module)}
        return {}

    def statistics(self, task: Task, local: Local) -> State:
        """Return tensors that the client sends beside its model, after its training."""
        return {}

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Return the server after the round: w = sum_k n_k w_k / sum_k n_k over the clients that share."""
        return Server(weighted_mean(self.weighed(updates), server.weights), server.memory)

    def weighed(self, updates: Iterable[Update]) -> Iterable[Update]:
        """Return the updates with the weights that they have in averages as their numbers of samples."""
        if not self.client_weights:
            return updates
        return (
            replace(update, num_samples=self.client_weights[update.client]) if update.num_samples else update
            for update in in_client_order(updates)
        )

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
            InputError: a client without one of ``client_weights``.
            FloatingPointError: if the loss or the model is not finite, naming client and round.
        """
        if self.client_weights and client >= len(self.client_weights):
            raise InputError(f"client_weights has no entry {client}; allowed: one for each client")
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
            total_steps=self.local_epochs * -(-len(data) // self.batch_size),
        )
        metrics = self.train(task, local) if len(data) else {}
        chosen = self.masks(task, local)
        state = model.state()
        personal.check(chosen, state)
        return Update(
            client=client,
            num_samples=len(data),
            weights=personal.shared_part(state, chosen),
            masks=chosen,
            statistics=self.statistics(task, local),
            metrics=metrics | local.metrics,
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
        optimizer = self.make_optimizer(local)
        total = torch.zeros((), device=model.values.device)
        with seeds.torch_global(local.seed, "dropout", local.round, local.client):
            for epoch in range(self.local_epochs):
                order = seeds.torch_generator(local.seed, "batches", local.round, local.client, epoch)
                for batch, size in batches(local.data, self.batch_size, order):
                    # One sample has no batch statistics: it trains with the running ones.
                    for layer in norms:
                        layer.train(size > 1 and self.batch_statistics(local))
                    model.grad.zero_()
                    loss = self.loss(task, local, batch)
                    loss.backward()
                    self.correct_gradient(local)
                    self.step(local, optimizer)
                    local.steps += 1
                    total += loss.detach()
        if self.optimizer_state == "keep":
            local.memory |= {f"optimizer/{name}": t for name, t in optimizer.state().items()}
        mean_loss = float(total) / local.steps
        if not torch.isfinite(total + model.values.sum()):  # a sum is finite only if all its terms are
            raise FloatingPointError(
                f"client {local.client}, round {local.round}: the model or its loss ({mean_loss}) is not finite; "
                f"a smaller lr than {self.lr} may help"
            )
        return {"train_loss": mean_loss, "steps": float(local.steps)}

    def make_optimizer(self, local: Local) -> Optimizer:
        """Return the optimizer of a client's round, with what it kept from the last one."""
        optimizer: Optimizer = (
            AdamW(self.weight_decay) if self.optimizer == "adamw" else SGD(self.momentum, self.weight_decay)
        )
        kept = {
            n.removeprefix("optimizer/"): t for n, t in local.memory.items() if n.startswith("optimizer/")
        }
        optimizer.load(kept)
        return optimizer

    def step(self, local: Local, optimizer: Optimizer) -> None:
        """Take one step on the model's parameters along its gradients."""
        model = local.model
        if self.clip is not None:
            model.grad.mul_((self.clip / (model.grad.norm() + 1e-6)).clamp(max=1.0))
        scale = self.step_scale(local)
        before = None if scale is None else model.values.clone()
        optimizer.step(model.values, model.grad, self.lr_at(local))
        if scale is not None and before is not None:
            model.values.sub_(before).mul_(scale).add_(before)
            model.values.copy_(torch.where(scale == 0, before, model.values))  # the same bits, even after inf

    def lr_at(self, local: Local) -> float:
        """Return the step size of the coming step."""
        lr = self.lr
        if self.lr_floor < 1:
            progress = min((local.round - 1 + local.steps / local.total_steps) / self.total_rounds, 1.0)
            lr *= self.lr_floor + (1 - self.lr_floor) * (1 + cos(pi * progress)) / 2
        if local.round == 1 and local.steps < self.warmup_steps:
            lr *= (local.steps + 1) / self.warmup_steps
        return lr


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
