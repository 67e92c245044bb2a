"""The shape that every classifier of this library has: a backbone that gives features, and a linear head."""

from __future__ import annotations

import torch
from torch import nn


class Classifier(nn.Module):
    """Logits are a linear function of the features: ``forward(x) = head(features(x))``.

    State names start with ``backbone.`` or ``head.``, so that methods can treat the two apart by name.

    Args:
        backbone: maps images (B, channels, H, W) to features (B, d), d = ``feature_dim``.
        feature_dim: d.
        num_classes: C.
    """

    def __init__(self, backbone: nn.Module, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(feature_dim, num_classes)

    @property
    def feature_dim(self) -> int:
        """Length d of a feature vector."""
        return self.head.in_features

    @property
    def num_classes(self) -> int:
        """Number of logits C."""
        return self.head.out_features

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the penultimate layer, (B, d)."""
        z: torch.Tensor = self.backbone(x)
        return z

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits, (B, C)."""
        logits: torch.Tensor = self.head(self.features(x))
        return logits
