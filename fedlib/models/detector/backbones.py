"""Backbones that make tokens of the LiDAR grid and of the pictures."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchvision.models import resnet50
from torchvision.models._utils import IntermediateLayerGetter

from fedlib.models.detector.config import Config

CHANNELS = 13  # of the LiDAR grid, see inputs.py


def _conv(inside: int, outside: int, size: int, stride: int = 1) -> nn.Sequential:
    padding = size // 2 if stride == 1 else 0
    layer = nn.Conv2d(inside, outside, size, stride, padding, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outside), nn.ReLU(inplace=True))


class Residual(nn.Module):
    """x + conv-BN-ReLU-conv-BN, then ReLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = _conv(width, width, 3)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C, H, W) of (B, C, H, W)."""
        return (x + self.norm(self.second(self.first(x)))).relu()


class LidarBackbone(nn.Module):
    """Grid (B, 13, cells, cells) to tokens (B, d, cells / 4, cells / 4) over two scales."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        c, (fine, coarse) = config.lidar_width, config.lidar_blocks
        self.stem = _conv(CHANNELS, c, 4, 4)
        self.fine = nn.Sequential(*(Residual(c) for _ in range(fine)))
        self.down = _conv(c, c, 2, 2)
        self.coarse = nn.Sequential(*(Residual(c) for _ in range(coarse)))
        self.up = nn.ConvTranspose2d(c, c, 2, 2, bias=False)
        self.up_norm = nn.BatchNorm2d(c)
        self.out = _conv(2 * c, config.width, 1)

    def forward(self, grid: Tensor) -> Tensor:
        """Return F_bev (B, d, H, W)."""
        fine = self.fine(self.stem(grid))
        wide = self.up_norm(self.up(self.coarse(self.down(fine)))).relu()
        result: Tensor = self.out(torch.cat([fine, wide], dim=1))
        return result


class CompactImageBackbone(nn.Sequential):
    """Pictures (N, 3, h, w) to tokens (N, d, h / 8, w / 8)."""

    def __init__(self, config: Config) -> None:
        super().__init__(
            _conv(3, 32, 4, 4),
            Residual(32),
            _conv(32, 64, 2, 2),
            Residual(64),
            nn.Conv2d(64, config.width, 1),
        )


class ResNetImageBackbone(nn.Module):
    """ResNet-50 (torchvision) with a two-level feature pyramid; its map of stride 16 gives the tokens."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.body = IntermediateLayerGetter(resnet50(weights=None), {"layer3": "c4", "layer4": "c5"})
        self.side4, self.side5 = nn.Conv2d(1024, config.width, 1), nn.Conv2d(2048, config.width, 1)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.out = nn.Conv2d(config.width, config.width, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        """Return F_img (N, d, h / 16, w / 16)."""
        maps = self.body(images)
        result: Tensor = self.out(self.side4(maps["c4"]) + self.up(self.side5(maps["c5"])))
        return result


def image_backbone(config: Config) -> nn.Module:
    """Return the image backbone of a configuration."""
    return CompactImageBackbone(config) if config.image_backbone == "compact" else ResNetImageBackbone(config)
