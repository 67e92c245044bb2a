"""``cnn3``: the three-layer CNN.

The MPT paper (Jang et al.) names a "3-layer CNN" without its widths; 32-64-128 with global average pooling is our
choice. It has 94,538 parameters for ten classes of RGB images, whatever the image size.
"""

from __future__ import annotations

from torch import nn

WIDTHS = (32, 64, 128)


def backbone(in_channels: int, image_size: int) -> tuple[nn.Module, int]:
    """Return the network up to its features, (B, channels, s, s) -> (B, 128), and d = 128.

    ``image_size`` s >= 8 makes no difference: three halvings leave (s // 8)^2 places, which are averaged.
    """
    layers: list[nn.Module] = []
    for width in WIDTHS:
        layers += [nn.Conv2d(in_channels, width, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        in_channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), in_channels
