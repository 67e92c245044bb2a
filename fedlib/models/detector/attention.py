"""Attention with separate projections, and the geometric prior on cross-attention.

Every projection is a module of its own, so that each is a layer that can be scored and kept by itself.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib.models.detector.config import Config
from fedlib.models.detector.encodings import bev_axis, metres, pixel_axes, project

FLOOR = -10.0  # far less would give denormal weights, which slow the backward pass tenfold on a CPU
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
    where = metres(anchors, config)
    axis = (2 * bev_axis(config, anchors) - 1) * config.reach
    ground = _squared(where[..., :2], axis, axis)  # (B, Q, H W)
    pixels, depth = project(where, projections)
    away = _squared(pixels, *pixel_axes(config, anchors)) * PIXEL**2
    away = torch.where(depth[..., None] > 1e-2, away, BEHIND**2)  # (B, V, Q, h w)
    squared = torch.cat([ground, away.transpose(1, 2).flatten(2)], dim=-1)
    rate = -1 / (2 * anchors.new_tensor(config.prior).square())
    return (squared[:, None] * rate[:, None, None]).clamp_(min=FLOOR)


def _squared(middles: Tensor, columns: Tensor, rows: Tensor) -> Tensor:
    """Return squared distances (..., h w) of middles (..., 2) to all pairs of columns (w,) and rows (h,)."""
    x, y = (middles[..., :1] - columns).square(), (middles[..., 1:] - rows).square()
    return (y[..., :, None] + x[..., None, :]).flatten(-2)
