"""Prediction heads of one decoder layer (CMT, Yan et al., 2023, Section 3.4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedlib.models.detector.config import NUM_CLASSES, Config
from fedlib.models.detector.encodings import metres

BRANCHES = {"cls": NUM_CLASSES, "centre": 2, "height": 1, "size": 3, "yaw": 2, "velocity": 2}
_RARE = -2.19  # logit of a class before training: a probability of 0.1


class Head(nn.ModuleDict):
    """Six branches, each Linear-LN-ReLU-Linear; centre and height start at 0: queries start at anchors."""

    def __init__(self, config: Config) -> None:
        d = config.width
        super().__init__(
            {
                name: nn.Sequential(nn.Linear(d, d), nn.LayerNorm(d), nn.ReLU(), nn.Linear(d, size))
                for name, size in BRANCHES.items()
            }
        )
        self.config = config
        for name in ("centre", "height"):
            for tensor in self[name].get_submodule("3").parameters():
                nn.init.zeros_(tensor)
        nn.init.constant_(self["cls"].get_parameter("3.bias"), _RARE)

    def forward(self, q: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (B, Q, 10), codes (B, Q, 10) in metres, and the new references (B, Q, 3) in 0..1.

        Args:
            q: (B, Q, d).
            anchors: (B, Q, 3) in 0..1.
        """
        offset = torch.cat([self["centre"](q), self["height"](q)], dim=-1)
        # (x, y, z) = sigmoid(Delta + logit(anchor)), then metres
        place = (offset + torch.logit(anchors, eps=1e-5)).sigmoid()
        x, y, z = metres(place, self.config).unbind(-1)
        w, length, h = self["size"](q).unbind(-1)
        sizes = torch.stack([x, y, w, length, z, h], dim=-1)
        codes = torch.cat([sizes, self["yaw"](q), self["velocity"](q)], dim=-1)
        return self["cls"](q), codes, place
