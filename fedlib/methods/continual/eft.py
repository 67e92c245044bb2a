"""Efficient feature transformations (Verma et al., CVPR 2021): small task-specific convolutions on shared ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.federation.model_state import State, model_state
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual.strategy import Context, Strategy, frozen_copy, non_negative
from fedlib.methods.continual.training import Training

MILESTONES = (0.4, 0.6, 0.8)  # 100, 150 and 200 of 250 epochs


class Adapter(nn.Module):
    """a(y) = GWC(y) + PWC(y), and a BatchNorm where the network has none of its own.

    Args:
        channels: C.
        group: channels in a group of the 3 x 3 convolution GWC; gcd(C, group) where it does not divide C.
        point: the same for the 1 x 1 convolution PWC.
        norm: whether a BatchNorm follows.
    """

    def __init__(self, channels: int, group: int, point: int, norm: bool) -> None:
        super().__init__()
        groups = channels // math.gcd(channels, group)
        points = channels // math.gcd(channels, point)
        self.group_wise = nn.Conv2d(channels, channels, kernel_size=3, padding=1, groups=groups)
        self.point_wise = nn.Conv2d(channels, channels, kernel_size=1, groups=points)
        self.norm = nn.BatchNorm2d(channels) if norm else nn.Identity()

    def forward(self, y: Tensor) -> Tensor:
        """Return the transformed maps (B, C, h, w)."""
        out: Tensor = self.norm(self.group_wise(y) + self.point_wise(y))
        return out


class Paths(nn.Module):
    """One module for each task; the present one is used. Earlier ones are fixed, in evaluation mode for good.

    Args:
        first: module of the first task.
        base: applied before it, if any; shared by all tasks.
    """

    def __init__(self, first: nn.Module, base: nn.Module | None = None) -> None:
        super().__init__()
        self.base = base if base is not None else nn.Identity()
        self.tasks = nn.ModuleList([first])
        self.active = 0

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the active path."""
        out: Tensor = self.tasks[self.active](self.base(x))
        return out

    def add(self) -> None:
        """Begin a path as a copy of the last one, which is fixed from now on."""
        self.tasks.append(type_copy(self.tasks[-1]))
        self.tasks[-2].requires_grad_(False)
        self.active = len(self.tasks) - 1

    def train(self, mode: bool = True) -> Self:
        """Put base and last path into training mode; the others stay in evaluation mode."""
        super().train(mode)
        for path in self.tasks[:-1]:
            path.eval()
        return self


def type_copy(module: nn.Module) -> nn.Module:
    """Return a copy that can be trained."""
    copied: nn.Module = frozen_copy(module).requires_grad_(True)
    return copied


def with_paths(module: nn.Module, group: int, point: int) -> list[Paths]:
    """Put an adapter behind every convolution, and give every BatchNorm a copy for each task; in place.

    Args:
        module: the feature network; not itself a convolution.
        group: see :class:`Adapter`.
        point: see :class:`Adapter`.

    Returns:
        The new parts.
    """
    has_norms = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules())
    new: list[Paths] = []
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Conv2d):
                adapter = Adapter(child.out_channels, group, point, norm=not has_norms)
                new.append(Paths(adapter, child))
            elif isinstance(child, nn.modules.batchnorm._BatchNorm):
                new.append(Paths(child))
            else:
                continue
            setattr(parent, name, new[-1])
    return new


@dataclass(kw_only=True)
class EFT(Strategy):
    """The first task trains everything; later ones adapters, BatchNorm and rows of the head of their own.

    The new adapters and norms start as copies of the last task's.

        loss CE over the task's rows + weight * mean_{m<t} max(0, 1 - ||F_t - F_m||_F / B)

    with F_m the features of the batch (B samples) on the path of task m. A class-incremental prediction runs all
    paths, takes the one whose softmax has the smallest entropy, and its most likely class.

    Attributes:
        group: channels in a group of the 3 x 3 convolutions (gp).
        point: channels in a group of the 1 x 1 convolutions (pt).
        weight: of the term that keeps paths apart.
        lr: of SGD; None for the suite's settings of lr, weight decay, epochs and schedule.
        weight_decay: of SGD, with ``lr``.
        epochs: with ``lr``; the step size falls to a tenth after 0.4, 0.6 and 0.8 of them.
    """

    label: ClassVar[str] = "EFT"
    category: ClassVar[str] = "E"
    stores: ClassVar[str] = "adapters, norms and rows of each task, within the network"

    group: int = 8
    point: int = 16
    weight: float = 0.05
    lr: float | None = 0.01
    weight_decay: float = 5e-3
    epochs: int = 250

    paths: list[Paths] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        non_negative(weight=self.weight, weight_decay=self.weight_decay)
        if self.group < 1 or self.point < 1 or self.epochs < 1 or not (self.lr is None or self.lr > 0):
            raise InputError(
                f"group, point, epochs, lr are {self.group!r}, {self.point!r}, {self.epochs!r}, {self.lr!r}; "
                "allowed: at least 1 each, lr above 0 or None"
            )

    @classmethod
    def small(cls) -> Self:
        """Return the budget for small images: groups of 4, the suite's schedule."""
        return cls(group=4, point=4, lr=None)

    def adapt(self, training: Training) -> Training:
        """Return the method's schedule."""
        if self.lr is None:
            return training
        return replace(
            training,
            lr=self.lr,
            weight_decay=self.weight_decay,
            epochs=self.epochs,
            milestones=MILESTONES,
            patience=None,
        )

    @property
    def rows(self) -> slice:
        """The present task's rows, whatever the suite says: each path has a classifier of its own."""
        return slice(self.old, self.seen)

    def start(self, context: Context) -> None:
        """Put the adapters into the network.

        Raises:
            InputError: a network without convolutions.
        """
        super().start(context)
        if not any(isinstance(module, nn.Conv2d) for module in self.net.modules()):
            raise InputError("the network has 0 convolutions; allowed for EFT: at least one")
        with seeds.torch_global(context.seed, "adapters"):
            self.paths = with_paths(self.net, self.group, self.point)
        self.net.to(device=self.net.head.weight.device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def begin_task(self, data: ImageData) -> None:
        """Begin a new path; after the first task the shared part is fixed."""
        if self.context.t == 0:
            return
        self.net.encoder.requires_grad_(False)
        for path in self.paths:
            path.add()

    def features(self, x: Tensor, m: int) -> Tensor:
        """Return the features (B, d) on the path of task m."""
        for path in self.paths:
            path.active = m
        z = self.net.features(x)
        for path in self.paths:
            path.active = len(path.tasks) - 1
        return z

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy with the term that keeps paths apart."""
        z = self.net.features(x)
        loss = self.cross_entropy(self.net.head(z), y)
        if self.context.t == 0 or self.weight == 0:
            return loss
        with torch.no_grad():
            others = [self.features(x, m) for m in range(self.context.t)]
        # mean_{m<t} max(0, 1 - ||F_t - F_m||_F / B)
        distances = torch.stack([(z - other).norm() / len(x) for other in others])
        return loss + self.weight * (1 - distances).relu().mean()

    def scores(self, x: Tensor) -> Tensor:
        """Return the softmax of each path over its own rows, plus 1 on the path of the smallest entropy."""
        parts, entropies, first = [], [], 0
        for m in range(self.context.t + 1):
            last = first + len(self.context.tasks[m])
            logits = self.net.head(self.features(x, m))[:, first:last]
            p = functional.softmax(logits, dim=1).double()  # adding 1 must not round ties into it
            entropies.append(-(p * functional.log_softmax(logits, dim=1)).sum(1))
            parts.append(p)
            first = last
        chosen = torch.stack(entropies).argmin(0)
        return torch.cat([p + (chosen == m)[:, None] for m, p in enumerate(parts)], dim=1)

    def state_dict(self) -> State:
        """Return adapters and norms of the tasks before the present one; they are part of the network."""
        state: State = {}
        for k, path in enumerate(self.paths):
            for m, module in enumerate(list(path.tasks)[:-1]):
                state |= {f"{k}/{m}/{name}": value for name, value in model_state(module).items()}
        return state
