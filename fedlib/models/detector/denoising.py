"""Denoising queries: noisy copies of the true boxes' middles as anchors (DN-DETR, Li et al., 2022; CMT)."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi

import torch
from torch import Tensor

from fedlib.models.detector.boxes import to_boxes
from fedlib.models.detector.config import NUM_CLASSES, Config
from fedlib.models.detector.encodings import normalise
from fedlib.models.detector.inputs import Targets


@dataclass(frozen=True, eq=False)
class Denoising:
    """Denoising queries of a batch, N = groups x M.

    Attributes:
        anchors: (B, N, 3) in 0..1.
        codes: (B, N, 10), the boxes they are noisy copies of.
        classes: (B, N) int64, 10 where the noise is so large that the class is background.
        present: (B, N) bool, False for filling.
        allowed: (B, 1, Q + N, Q + N) bool, which query (row) sees which (column); matching queries come first.
        normaliser: of the classification loss.
    """

    anchors: Tensor
    codes: Tensor
    classes: Tensor
    present: Tensor
    allowed: Tensor
    normaliser: Tensor


def make(targets: Targets, config: Config, generator: torch.Generator) -> Denoising | None:
    """Return denoising queries; None without a box, or with so many that no group fits.

    Args:
        targets: true boxes (B, M).
        config: sizes.
        generator: source of the noise, on the CPU.
    """
    most = int(targets.present.sum(1).max())
    groups = min(config.denoising, config.queries // most) if most else 0
    if not groups:
        return None
    batch = len(targets.classes)
    codes = targets.codes[:, :most].repeat(1, groups, 1)
    classes, present = (x[:, :most].repeat(1, groups) for x in (targets.classes, targets.present))
    boxes = to_boxes(codes)
    # centre + r * size / 2 with r ~ U(-1, 1)^3
    r = 2 * torch.rand(batch, groups * most, 3, generator=generator).to(codes.device) - 1
    anchors = normalise(boxes[..., :3] + r * boxes[..., 3:6] / 2, config).clamp(0, 1)
    classes = torch.where(r.norm(dim=-1) > config.noise_split, torch.full_like(classes, NUM_CLASSES), classes)
    # N_dn (pi / 6) 0.75^3
    normaliser = (present.sum() * (pi / 6) * config.noise_split**3).clamp(min=1.0)
    allowed = visible(config.queries, groups, most, present)
    return Denoising(anchors, codes, classes, present, allowed, normaliser)


def visible(queries: int, groups: int, most: int, present: Tensor) -> Tensor:
    """Return which query sees which, bool (B, 1, Q + N, Q + N).

    Matching queries see each other only; a denoising query sees them and its own group. Filling is seen by itself
    alone.

    Args:
        queries: Q.
        groups: number of groups.
        most: queries of a group, N = groups * most.
        present: (B, N).
    """
    device = present.device
    matching = torch.full((queries,), -1, device=device)
    group = torch.cat([matching, torch.arange(groups, device=device).repeat_interleave(most)])
    pairs = (group[:, None] == group) | (group == -1)  # (Q + N, Q + N)
    real = torch.cat([present.new_ones(len(present), queries), present], dim=1)
    alone = torch.eye(len(group), dtype=torch.bool, device=device)
    return ((pairs & real[:, None, :]) | alone)[:, None]
