"""Attention with separate projections, and the geometric prior on cross-attention.

Every projection is a module of its own, so that each is a layer that can be scored and kept by itself.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib.models.detector.config import Config
from fedlib.models.detector.encodings import bev_centres, metres, pixel_centres, project

FLOOR = -10.0  # exp of less is a denormal number after the sum, and slows the backward pass tenfold
PIXEL = 0.25  # metres that a pixel away counts as
BEHIND = 20.0  # metres that a place behind the camera counts as


class Attention(nn.Module):
    """Scaled dot-product attention with ``heads`` heads."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, width)
        self.v, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, heads, N, d / heads)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return (B, Q, d).

        Args:
            query: (B, Q, d).
            key: (B, N, d).
            value: (B, N, d).
            bias: added to the logits if float, allowed pairs if bool; broadcast to (B, heads, Q, N).
        """
        q, k, v = self._split(self.q(query)), self._split(self.k(key)), self._split(self.v(value))
        rate = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=rate)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


@torch.no_grad()
def prior(anchors: Tensor, projections: Tensor, config: Config) -> Tensor | None:
    """Return -dist^2 / (2 sigma_h^2), at least -10, (B, heads, Q, H W + V h w); None if switched off.

    The distance is on the ground for LiDAR tokens, and 0.25 m a pixel from the projected anchor for image tokens
    (20 m behind a camera), in the spirit of spatially modulated co-attention (Gao et al., 2021). It carries no
    gradient, for a bias that needs one makes fused attention unavailable.

    Args:
        anchors: (B, Q, 3) in 0..1.
        projections: (B, V, 4, 4).
        config: sizes.
    """
    if not config.prior:
        return None
    places = metres(anchors, config)
    centres = (2 * bev_centres(config, anchors) - 1) * config.reach
    ground = (places[:, :, None, :2] - centres).square().sum(-1)  # (B, Q, H W)
    pixels, depth = project(places, projections)
    away = (pixels[..., None, :] - pixel_centres(config, anchors)).square().sum(-1) * PIXEL**2
    away = torch.where(depth[..., None] > 1e-2, away, torch.full_like(away, BEHIND**2))  # (B, V, Q, h w)
    squared = torch.cat([ground, away.transpose(1, 2).flatten(2)], dim=-1)
    sigma = anchors.new_tensor(config.prior)[:, None, None]
    return (-squared[:, None] / (2 * sigma.square())).clamp(min=FLOOR)
