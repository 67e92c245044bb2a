"""Losses of the detector (CMT, Yan et al., 2023, Section 3.4)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedlib.models.detector.boxes import CODE_WEIGHTS
from fedlib.models.detector.config import NUM_CLASSES, Config
from fedlib.models.detector.denoising import Denoising
from fedlib.models.detector.encodings import bev_centres
from fedlib.models.detector.inputs import Targets
from fedlib.models.detector.matching import ALPHA, BOX_WEIGHT, CLASS_WEIGHT, GAMMA, assign

_BACKGROUND = 0.1  # how much a query without a box counts in the normaliser


def focal(logits: Tensor, classes: Tensor) -> Tensor:
    """Return the focal loss (Lin et al., 2017; alpha 0.25, gamma 2) of each query, summed over classes, (...).

    Args:
        logits: (..., C).
        classes: (...) int64, C for background.
    """
    wanted = functional.one_hot(classes, logits.shape[-1] + 1)[..., :-1].to(logits.dtype)
    cross = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    p = logits.sigmoid()
    miss = p + wanted - 2 * p * wanted  # 1 - p of a class that is there, p of one that is not
    return ((ALPHA * wanted + (1 - ALPHA) * (1 - wanted)) * miss**GAMMA * cross).sum(-1)


def box_error(codes: Tensor, wanted: Tensor) -> Tensor:
    """Return ``sum_c w_c |codes - wanted|`` (...) of codes (..., 10); NaNs of ``wanted`` do not count."""
    known = wanted.isfinite()
    away = (codes - torch.where(known, wanted, codes.detach())).abs() * known
    return (away * codes.new_tensor(CODE_WEIGHTS)).sum(-1)


def matched(logits: Tensor, codes: Tensor, targets: Targets) -> dict[str, Tensor]:
    """Return ``class`` and ``box`` () of the matching queries, summed over layers.

    Args:
        logits: (L, B, Q, C).
        codes: (L, B, Q, 10).
        targets: boxes (B, M); without a single one the box loss is 0.
    """
    layer, sample, query, box = assign(logits, codes, targets)
    classes = torch.full(logits.shape[:3], logits.shape[-1], dtype=torch.int64, device=logits.device)
    classes[layer, sample, query] = targets.classes[sample, box]
    positive = len(layer) / len(logits)  # of one layer
    negative = logits[0, ..., 0].numel() - positive
    error = box_error(codes[layer, sample, query], targets.codes[sample, box])
    return {
        # 2 Focal / max(1, N_pos + 0.1 N_neg)
        "class": CLASS_WEIGHT * focal(logits, classes).sum() / max(1.0, positive + _BACKGROUND * negative),
        # 0.25 sum w_c |.|_1 / N_pos
        "box": BOX_WEIGHT * error.sum() / max(1.0, positive),
    }


def denoised(logits: Tensor, codes: Tensor, noisy: Denoising) -> dict[str, Tensor]:
    """Return ``dn_class`` and ``dn_box`` () of the denoising queries, summed over layers.

    Args:
        logits: (L, B, N, C).
        codes: (L, B, N, 10).
        noisy: what they have to give.
    """
    real = noisy.present
    classes = noisy.classes.expand(logits.shape[:3])
    error = box_error(codes, noisy.codes.expand_as(codes))
    return {
        "dn_class": CLASS_WEIGHT * (focal(logits, classes) * real).sum() / noisy.normaliser,
        "dn_box": BOX_WEIGHT * (error * real).sum() / real.sum().clamp(min=1),
    }


def heat_map(logits: Tensor, targets: Targets, config: Config) -> Tensor:
    """Return the focal loss () of class maps (CenterNet, Zhou et al., 2019, Eq. 1; alpha 2, beta 4).

    A box is a Gaussian round its middle, its standard deviation a sixth of its length or width, at least a token.

    Args:
        logits: (B, C, H, W).
        targets: boxes (B, M).
        config: sizes.
    """
    batch, n = len(logits), config.grid
    centres = (2 * bev_centres(config, logits) - 1) * config.reach  # (H W, 2)
    middles = targets.codes[..., :2]
    token = 2 * config.reach / n
    sigma = (targets.codes[..., 2:4].exp().amax(-1) / 6).clamp(min=token)  # (B, M)
    squared = (middles[:, :, None] - centres).square().sum(-1)
    bell = (-squared / (2 * sigma[..., None].square())).exp() * targets.present[..., None]  # (B, M, H W)
    nearest = functional.one_hot(squared.argmin(-1), n * n) * targets.present[..., None]
    bell = torch.maximum(bell, nearest.to(bell.dtype))
    index = targets.classes[..., None].expand_as(bell)
    wanted = bell.new_zeros(batch, NUM_CLASSES, n * n).scatter_reduce(1, index, bell, "amax").view_as(logits)
    p, middle = logits.sigmoid(), wanted == 1
    hit = -((1 - p) ** 2) * functional.logsigmoid(logits) * middle
    miss = -((1 - wanted) ** 4) * p**2 * functional.logsigmoid(-logits) * ~middle
    return (hit + miss).sum() / middle.sum().clamp(min=1)
