"""The clients' models as one teacher: the mean of their logits."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from fedlib.errors import InputError
from fedlib.methods.federated.fedavg import batch_norm_layers


class Ensemble(nn.Module):
    """Copies of the clients' models, frozen: E(x) = 1/K sum_k f_k(x), logits (B, C).

    ``train()`` changes nothing: parameters take no gradient, BatchNorm and dropout stay in evaluation mode.

    Args:
        models: f_1 ... f_K, which stay as they are; their architectures may differ.
        device: where the copies are put.

    Raises:
        InputError: no model.
    """

    def __init__(self, models: Sequence[nn.Module], device: torch.device | str = "cpu") -> None:
        super().__init__()
        if not models:
            raise InputError("there are 0 clients; allowed: at least one")
        self.models = nn.ModuleList([copy.deepcopy(model).to(device) for model in models])
        self.requires_grad_(False)
        self.train(False)

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode whatever ``mode`` is."""
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean logits, (B, C)."""
        return torch.stack([model(x) for model in self.models]).mean(0)

    def logits_and_features(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the mean logits (B, C) and each client's penultimate features (B, d_k).

        The models are :class:`fedlib.models.Classifier`, so that one pass gives both.
        """
        features = [model.features(x) for model in self.models]  # type: ignore[operator]
        heads = [model.head(z) for model, z in zip(self.models, features)]  # type: ignore[operator]
        return torch.stack(heads).mean(0), features

    def adapted(self) -> AdaptedEnsemble:
        """Return a copy whose BatchNorm statistics can be adapted (E' of FedISCA)."""
        return AdaptedEnsemble(list(self.models), next(self.parameters()).device)


class AdaptedEnsemble(Ensemble):
    """An ensemble whose BatchNorm statistics can be fitted to other images. Nothing else of it changes."""

    def adapt(self, x: Tensor) -> Tensor:
        """Return the mean logits (B, C) of two or more images, normalised by the batch, without gradients.

        The running statistics move towards those of the batch; dropout stays off.
        """
        layers = batch_norm_layers(self)
        for layer in layers:
            layer.train()
        with torch.no_grad():
            out: Tensor = self(x)
        for layer in layers:
            layer.eval()
        return out
