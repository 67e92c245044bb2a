"""Assignment of queries to boxes (DETR, Carion et al., 2020; costs of CMT, Yan et al., 2023)."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional

from fedlib.models.detector.boxes import CODE_WEIGHTS
from fedlib.models.detector.inputs import Targets

ALPHA, GAMMA = 0.25, 2.0
CLASS_WEIGHT, BOX_WEIGHT = 2.0, 0.25
_MATCHED = 8  # numbers of the code; velocities do not decide


@torch.no_grad()
def costs(logits: Tensor, codes: Tensor, targets: Targets) -> Tensor:
    """Return costs (L, B, Q, M) of all layers.

    Args:
        logits: (L, B, Q, C).
        codes: (L, B, Q, 10).
        targets: boxes (B, M).
    """
    p = logits.sigmoid()
    # FocalCost = positive minus negative focal term at the target class
    positive = -ALPHA * (1 - p) ** GAMMA * functional.logsigmoid(logits)
    negative = -(1 - ALPHA) * p**GAMMA * functional.logsigmoid(-logits)
    index = targets.classes[None, :, None, :].expand(*logits.shape[:3], -1)
    focal = (positive - negative).gather(3, index)
    # sum over the first 8 numbers of w_c |pred - target|
    weights = codes.new_tensor(CODE_WEIGHTS)[:_MATCHED]
    away = torch.cdist(
        codes[..., :_MATCHED] * weights, (targets.codes[..., :_MATCHED] * weights)[None], p=1.0
    )
    return CLASS_WEIGHT * focal + BOX_WEIGHT * away


def assign(logits: Tensor, codes: Tensor, targets: Targets) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the pairs of least total cost as indices (P,) int64 each: layer, sample, query and box.

    Args:
        logits: (L, B, Q, C).
        codes: (L, B, Q, 10).
        targets: boxes (B, M); any may have none.
    """
    table = costs(logits, codes, targets).cpu().numpy()
    numbers = targets.present.sum(1).tolist()
    found = [np.zeros((4, 0), dtype=np.int64)]
    for layer in range(table.shape[0]):
        for sample, number in enumerate(numbers):
            query, box = linear_sum_assignment(table[layer, sample, :, :number])
            found.append(np.stack([np.full_like(query, layer), np.full_like(query, sample), query, box]))
    layer, sample, query, box = torch.from_numpy(np.concatenate(found, axis=1)).to(logits.device)
    return layer, sample, query, box
