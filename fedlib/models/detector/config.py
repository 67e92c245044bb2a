"""Sizes and options of the detector."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi

import torch

from fedlib.errors import InputError, choose

NUM_CLASSES = 10
CODE = 10  # numbers of a box code


@dataclass(frozen=True)
class Config:
    """CMT (Yan et al., 2023) in a size.

    Attributes:
        reach: half the side of the square around the car that is seen, in metres (x1 = y1).
        low: lower end of the heights, metres above the road.
        high: upper end.
        cells: cells of the LiDAR grid along a side; a multiple of 8. A token stands for 4 x 4 cells.
        image_size: height and width of the pictures in pixels; multiples of the stride (8, or 32 for ResNet-50).
        image_backbone: ``compact`` (stride 8) or ``resnet50`` (torchvision, stride 16).
        lidar_width: channels of the LiDAR backbone.
        lidar_blocks: residual blocks at token stride and at twice that.
        width: d, length of a token.
        heads: of an attention; divides d.
        ffn: hidden width of the feed-forward part.
        layers: of the decoder.
        queries: Q, learned anchors.
        depth_bins: D, points on the ray of a pixel.
        image_hidden: hidden width of the image encoding.
        dropout: in the decoder.
        prior: standard deviations in metres of the geometric attention prior, one per head (``inf``: none);
            empty switches it off.
        denoising: largest number of groups of denoising queries; 0 is off.
        noise_split: noise above which a denoising query's class is background.
        modality_mask: probability to train a batch without images, and the same without points.
        heat_map: auxiliary loss on class maps of the LiDAR tokens.
        refine: move the anchors from layer to layer.
        rotation: largest random turn of the space in training, radians.
        scale: largest random change of its size, a share.
        shift: standard deviation of its random translation along each axis, metres.
        flips: mirror it at random, along and across the car's heading. That hides on which side of the road a city
            drives.
        bf16: run the backbones in bfloat16 (results then differ from float32 in the third digit).

    Raises:
        InputError: a value is out of range.
    """

    reach: float = 19.2
    low: float = -3.0
    high: float = 5.0
    cells: int = 96
    image_size: tuple[int, int] = (48, 96)
    image_backbone: str = "compact"
    lidar_width: int = 64
    lidar_blocks: tuple[int, int] = (2, 1)
    width: int = 64
    heads: int = 4
    ffn: int = 128
    layers: int = 2
    queries: int = 100
    depth_bins: int = 12
    image_hidden: int = 128
    dropout: float = 0.0
    prior: tuple[float, ...] = (1.0, 2.0, 4.0, float("inf"))
    denoising: int = 0
    noise_split: float = 0.75
    modality_mask: float = 0.0
    heat_map: bool = False
    refine: bool = False
    rotation: float = 0.1
    scale: float = 0.05
    shift: float = 0.0
    flips: bool = False
    bf16: bool = False

    def __post_init__(self) -> None:
        choose("image_backbone", self.image_backbone, ("compact", "resnet50"))
        step = 8 if self.image_backbone == "compact" else 32
        for name, ok, allowed in (
            ("reach", self.reach > 1, "above 1 (metres)"),
            ("high", self.high > self.low, f"above low = {self.low}"),
            ("cells", self.cells > 0 and self.cells % 8 == 0, "a multiple of 8"),
            ("image_size", all(n > 0 and n % step == 0 for n in self.image_size), f"multiples of {step}"),
            ("heads", self.heads > 0 and self.width % self.heads == 0, f"a divisor of width {self.width}"),
            ("layers", self.layers >= 1, "at least 1"),
            ("queries", self.queries >= 1, "at least 1"),
            ("depth_bins", self.depth_bins >= 1, "at least 1"),
            ("dropout", 0 <= self.dropout < 1, "at least 0 and below 1"),
            ("prior", len(self.prior) in (0, self.heads), f"empty, or {self.heads} numbers (one per head)"),
            ("denoising", self.denoising >= 0, "at least 0"),
            ("modality_mask", 0 <= self.modality_mask <= 0.5, "0 to 0.5"),
            ("rotation", 0 <= self.rotation <= pi, "0 to pi (radians)"),
            ("scale", 0 <= self.scale < 1, "at least 0 and below 1"),
            ("shift", self.shift >= 0, "at least 0 (metres)"),
        ):
            if not ok:
                raise InputError(f"{name} is {getattr(self, name)!r}; allowed: {allowed}")
        if self.bf16 and not torch.cuda.is_available() and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            raise InputError("bf16 is True, but this processor has no bfloat16 arithmetic; allowed: False")

    @property
    def grid(self) -> int:
        """LiDAR tokens along a side."""
        return self.cells // 4

    @property
    def stride(self) -> int:
        """Pixels between image tokens."""
        return 8 if self.image_backbone == "compact" else 16

    @property
    def box(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Least and greatest x, y, z that are seen, metres."""
        return (-self.reach, -self.reach, self.low), (self.reach, self.reach, self.high)


PRESETS = {
    "tiny": Config(),
    "compact": Config(denoising=3),
    # The size of FedCKA's detector (Verhoog, Ünal and Caesar, 2026); its sparse LiDAR encoder is a dense one here.
    "paper": Config(
        reach=54.0,
        low=-5.0,
        high=3.0,
        cells=536,
        image_size=(320, 800),
        image_backbone="resnet50",
        lidar_width=128,
        lidar_blocks=(5, 5),
        width=128,
        heads=4,
        ffn=256,
        layers=2,
        queries=900,
        depth_bins=64,
        image_hidden=512,
        dropout=0.1,
        prior=(),
        denoising=10,
        modality_mask=0.25,
        rotation=pi / 4,
        scale=0.1,
        shift=0.5,
        flips=True,
    ),
}


def preset(name: str) -> Config:
    """Return a preset: ``tiny``, ``compact`` or ``paper``.

    Raises:
        InputError: unknown name.
    """
    return PRESETS[choose("preset", name, PRESETS)]
