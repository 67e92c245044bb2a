"""Terms of data-free distillation: total variation, distance of BatchNorm statistics, augmentation.

Sources: Yin et al. 2020, DeepInversion (TV, BatchNorm);
Zhang et al. 2022, DENSE (augmentation).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib.methods.federated.fedavg import batch_norm_layers


def total_variation(x: Tensor) -> Tensor:
    """Return TV(x) = sum of the l2 norms of the horizontal, vertical and both diagonal differences, ().

    Args:
        x: images (B, channels, H, W); each norm is over the whole batch.
    """
    differences = (
        x[..., :, 1:] - x[..., :, :-1],
        x[..., 1:, :] - x[..., :-1, :],
        x[..., 1:, 1:] - x[..., :-1, :-1],
        x[..., 1:, :-1] - x[..., :-1, 1:],
    )
    return torch.stack([difference.norm() for difference in differences]).sum()


class BatchNormDistance:
    """How far the inputs of BatchNorm layers are from the statistics that the layers have stored.

    For one model: sum_l ||mu_l(x) - running_mean_l||_2 + ||var_l(x) - running_var_l||_2, with the biased variance
    over batch and places. Use it around forward passes; leaving the block removes the hooks:

        with BatchNormDistance(models) as distance:
            ensemble(x)
            loss = distance.value("sum")

    Args:
        models: the clients' models, whose BatchNorm layers are in evaluation mode.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._clients = len(models)
        self._terms: list[Tensor] = []
        self._hooks = [
            layer.register_forward_pre_hook(self._measure)
            for model in models
            for layer in batch_norm_layers(model)
        ]

    def _measure(self, layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        x = args[0]
        stored_mean, stored_variance = layer.get_buffer("running_mean"), layer.get_buffer("running_var")
        over = [axis for axis in range(x.ndim) if axis != 1]
        variance, mean = torch.var_mean(x, dim=over, correction=0)
        self._terms.append((mean - stored_mean).norm() + (variance - stored_variance).norm())

    def value(self, reduce: Literal["sum", "mean"]) -> Tensor | float:
        """Return the distance of the passes since the last call, summed or averaged over the clients, ().

        0.0 for models without BatchNorm.
        """
        terms, self._terms = self._terms, []
        total = torch.stack(terms).sum() if terms else 0.0
        return total / self._clients if reduce == "mean" else total

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._terms = []


def crop_and_flip(x: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Return each image shifted by up to ``padding`` pixels (zeros come in) and flipped with probability 1/2.

    Differentiable in x (B, channels, H, W); a random crop of the padded image, drawn for each image alone.
    """
    batch, _, height, width = x.shape
    top, left = torch.randint(0, 2 * padding + 1, (2, batch), generator=generator)
    flip = torch.rand(batch, generator=generator) < 0.5
    columns = torch.arange(width)
    rows = (top[:, None] + torch.arange(height)).to(x.device)  # (B, H)
    columns = torch.where(flip[:, None], columns.flip(0), columns)
    columns = (left[:, None] + columns).to(x.device)  # (B, W)
    padded = functional.pad(x, (padding,) * 4)
    image = torch.arange(batch, device=x.device)
    return padded[image[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
