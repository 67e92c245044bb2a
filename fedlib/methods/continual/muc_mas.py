"""MUC-MAS (Liu et al., ECCV 2020): MAS with the importance for several classifiers that disagree elsewhere.

After a task the feature network is fixed and J side heads are trained that agree on the task's samples and
disagree on images of something else. Parameters that matter to any of them are held as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib.errors import InputError, choose
from fedlib.federation.model_state import State
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual import importance
from fedlib.methods.continual.mas import MAS
from fedlib.methods.continual.quadratic import combine
from fedlib.methods.continual.strategy import Context, embedded, non_negative, prefixed

LR = 0.1  # of the side heads; a tenth of it from each of these shares of the epochs on
DECAYS = (0.5, 0.75, 0.875)  # 40, 60 and 70 of 80 epochs


def phase_scrambled(data: ImageData, generator: torch.Generator) -> ImageData:
    """Return images with the same power spectra and random phases: the same textures, no objects.

    Args:
        data: images.
        generator: one draw of phases for each image, the same in all its channels.
    """
    images = torch.from_numpy(data.images).double()  # (N, H, W, C)
    noise = torch.randn(images.shape[:3], generator=generator, dtype=torch.float64)
    phases = torch.fft.fft2(noise, dim=(1, 2)).angle()[
        ..., None
    ]  # those of a real image, so the result is real
    phases[:, 0, 0] = 0  # the mean brightness stays
    spectrum = torch.fft.fft2(images, dim=(1, 2)) * torch.exp(1j * phases)
    scrambled = torch.fft.ifft2(spectrum, dim=(1, 2)).real.round().clamp(0, 255)
    return ImageData(scrambled.numpy().astype(np.uint8), data.labels, data.normalizer, data.device)


def discrepancy(logits: Tensor) -> Tensor:
    """Return ``sum_{i<j} mean |softmax_i - softmax_j|`` of the heads' logits (J, B, C), ()."""
    p = functional.softmax(logits, dim=2)
    pairs = [(p[i] - p[j]).abs().mean() for i, j in combinations(range(len(p)), 2)]
    return torch.stack(pairs).sum() if pairs else logits.new_zeros(())


@dataclass(kw_only=True)
class MUCMAS(MAS):
    """Loss CE + alpha sum_i (Omega_main + 1.4 mean_j Omega_side,j)_i (theta_i - theta*_i)^2.

    Both importances are added up over the tasks. (The authors' code adds the new main one twice and drops the
    old one.)

    Attributes:
        strength: alpha.
        side_heads: J; 0 is MAS of strength 2 alpha.
        side_epochs: of their training, SGD at 0.1.
        side_weight: of the side importance.
        predict_with: the sum of the ``side`` heads' logits, or the ``main`` head.
        others: images of something else; None for phase-scrambled images of the task.
    """

    label: ClassVar[str] = "MUC-MAS"
    stores: ClassVar[str] = "parameters, two importances, side heads"
    factor: ClassVar[float] = 1.0

    strength: float = 0.01
    side_heads: int = 3
    side_epochs: int = 80
    side_weight: float = 1.4
    predict_with: Literal["side", "main"] = "side"
    others: ImageData | None = None

    main: State = field(init=False, repr=False)
    side: State = field(init=False, repr=False)
    heads: list[tuple[Tensor, Tensor]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("predict_with", self.predict_with, ("side", "main"))
        non_negative(side_weight=self.side_weight)
        if self.side_heads < 0 or self.side_epochs < 1:
            raise InputError(
                f"side_heads is {self.side_heads!r} and side_epochs {self.side_epochs!r}; "
                "allowed: at least 0 and at least 1"
            )
        if self.others is not None and not len(self.others):
            raise InputError("others has 0 images; allowed: at least one, or None")

    @classmethod
    def small(cls) -> Self:
        """Return the budget for small images: 10 epochs for the side heads."""
        return cls(samples=200, side_epochs=10)

    def options(self) -> dict[str, object]:
        """Return the options; of ``others`` the number of images."""
        number = None if self.others is None else len(self.others)
        return super().options() | {"others": number}

    def start(self, context: Context) -> None:
        """Begin without importance."""
        super().start(context)
        self.main, self.side, self.heads = {}, {}, []

    def total(self, data: ImageData) -> State:
        """Train the side heads, and return the importance of the tasks so far."""
        self.main = self.accumulated(self.main, self.sensitivity(data))
        if not self.side_heads:
            return self.main
        self.heads.append(self.train_side_heads(data))
        new = self.side_sensitivity(data, *self.heads[-1])
        self.side = {name: combine(self.side.get(name), value, 1.0, 1.0) for name, value in new.items()}
        # Omega = Omega_main + 1.4 mean_j Omega_side,j
        return {name: x + self.side_weight * self.side[name] for name, x in self.main.items()}

    def train_side_heads(self, data: ImageData) -> tuple[Tensor, Tensor]:
        """Return weights (J, c, d) and biases (J, c) of side heads for the c classes of the present task.

        The feature network is fixed and sees the images as they are, so features are computed once.
        """
        others = self.others or phase_scrambled(data, self.context.generator("phases"))
        z, z_other = embedded(self.net, data), embedded(self.net, others)
        y = self.targets(torch.from_numpy(data.labels).to(z.device)) - self.old
        count, dim = self.seen - self.old, z.shape[1]
        start = self.context.generator("side heads")
        weight = (2 * torch.rand(self.side_heads, count, dim, generator=start) - 1) / dim**0.5
        weight = weight.to(z.device).requires_grad_()
        bias = torch.zeros(self.side_heads, 1, count, device=z.device, requires_grad=True)
        optimizer = torch.optim.SGD([weight, bias], LR)
        milestones = [max(1, round(share * self.side_epochs)) for share in DECAYS]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones)
        order, size = self.context.generator("side batches"), self.context.training.batch_size
        with torch.enable_grad():
            for _ in range(self.side_epochs):
                for rows in torch.randperm(len(z), generator=order).split(size):
                    other = torch.randint(len(z_other), (len(rows),), generator=order)
                    logits = torch.baddbmm(
                        bias, z[rows].expand(self.side_heads, -1, -1), weight.transpose(1, 2)
                    )
                    far = torch.baddbmm(
                        bias, z_other[other].expand(self.side_heads, -1, -1), weight.transpose(1, 2)
                    )
                    # sum_j CE_j - sum_{i<j} E_other mean |softmax_i - softmax_j|
                    fit = functional.cross_entropy(logits.flatten(0, 1), y[rows].repeat(self.side_heads))
                    optimizer.zero_grad()
                    (self.side_heads * fit - discrepancy(far)).backward()
                    optimizer.step()
                schedule.step()
        return weight.detach(), bias.detach().squeeze(1)

    def side_sensitivity(self, data: ImageData, weight: Tensor, bias: Tensor) -> State:
        """Return mean_j Omega_side,j: of the mean square of a side head's logits; 0 for the main head."""
        chosen = importance.sample(data, self.samples, self.context.generator("importance"))

        def objective(z: Tensor, y: Tensor) -> Tensor:
            return (torch.einsum("bd,jcd->jbc", z, weight) + bias[:, None]).square().mean(dim=(1, 2))

        total = importance.gradient_moments(Features(self.net), self.parameters(), chosen, objective, "abs")
        return {name: x / self.side_heads for name, x in total.items()}

    def scores(self, x: Tensor) -> Tensor:
        """Return the sums of the side heads' logits, or the main head's logits."""
        if self.predict_with == "main" or not self.side_heads:
            return super().scores(x)
        z = self.net.features(x)
        sums = [functional.linear(z, weight.sum(0), bias.sum(0)) for weight, bias in self.heads]
        return torch.cat(sums, dim=1)

    def state_dict(self) -> State:
        """Return theta*, both importances and the side heads."""
        heads = {f"head/{t}/{k}": x for t, head in enumerate(self.heads) for k, x in enumerate(head)}
        kept = prefixed("anchor", self.anchor) | prefixed("main", self.main) | prefixed("side", self.side)
        return kept | heads


class Features(nn.Module):
    """Gives a network's features as its output."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Return the features (B, d)."""
        z: Tensor = self.net.encoder(x)  # type: ignore[operator]
        return z
