"""Boxes as codes, and codes as detections (CMT, Yan et al., 2023, Section 3.4)."""

from __future__ import annotations

import torch
from torch import Tensor

#: Weights of the code's numbers in matching and loss; velocities count least.
CODE_WEIGHTS = (2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.2, 0.2)
KEPT = 300
_FAR, _HIGH = 61.2, 10.0  # metres
_LOG_SIZE = (-3.0, 4.0)


def encode(boxes: Tensor) -> Tensor:
    """Return codes (..., 10) of boxes (..., 9): cx, cy, log w, log l, cz, log h, sin yaw, cos yaw, vx, vy.

    Boxes are x, y, z, w, l, h, yaw, vx, vy in metres, radians and metres per second; NaN velocities stay.
    """
    x, y, z, w, length, h, yaw, vx, vy = boxes.unbind(-1)
    return torch.stack([x, y, w.log(), length.log(), z, h.log(), yaw.sin(), yaw.cos(), vx, vy], dim=-1)


def to_boxes(codes: Tensor) -> Tensor:
    """Return boxes (..., 9) of codes (..., 10); log sizes are kept in -3 to 4 (metres 0.05 to 55)."""
    x, y, w, length, z, h, sine, cosine, vx, vy = codes.unbind(-1)
    w, length, h = (size.clamp(*_LOG_SIZE).exp() for size in (w, length, h))
    return torch.stack([x, y, z, w, length, h, torch.atan2(sine, cosine), vx, vy], dim=-1)


def decode(logits: Tensor, codes: Tensor, k: int = KEPT) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best detections of one sample, without suppression of neighbours.

    Args:
        logits: (Q, C) of the last layer.
        codes: (Q, 10).
        k: most detections.

    Returns:
        boxes (K, 9), classes (K,) int64 and scores (K,), by falling score, with middles within 61.2 m (10 m up).
    """
    scores, order = logits.sigmoid().flatten().topk(min(k, logits.numel()))
    boxes, classes = to_boxes(codes[order // logits.shape[1]]), order % logits.shape[1]
    kept = (boxes[:, :2].abs() <= _FAR).all(1) & (boxes[:, 2].abs() <= _HIGH)
    return boxes[kept], classes[kept], scores[kept].clamp(min=1e-6)
