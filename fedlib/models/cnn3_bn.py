"""``cnn3_bn``: the three-layer CNN with BatchNorm.

``cnn3`` with a BatchNorm after each convolution, which then needs no bias: 94,762 parameters for ten classes of
RGB images. The small versions of methods that read BatchNorm statistics (DENSE, FedISCA) use it.
"""

from __future__ import annotations

from torch import nn

from fedlib.models.cnn3 import WIDTHS


def backbone(in_channels: int, image_size: int) -> tuple[nn.Module, int]:
    """Return the network up to its features, (B, channels, s, s) -> (B, 128), and d = 128.

    ``image_size`` s >= 8 makes no difference: three halvings leave (s // 8)^2 places, which are averaged.
    """
    layers: list[nn.Module] = []
    for width in WIDTHS:
        layers += [
            nn.Conv2d(in_channels, width, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        in_channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), in_channels
