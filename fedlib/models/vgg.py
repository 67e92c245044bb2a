"""VGG (Simonyan and Zisserman, ICLR 2015) with BatchNorm, for images of any size.

Groups of 3 x 3 convolutions, a max-pooling after each group, and the average over all places as the features: as
usual for small images the three large linear layers are left out. A pooling that would leave fewer than three
places a side is left out too (28 -> 14 -> 7 -> 3, 32 -> 16 -> 8 -> 4; all five stay at 224 pixels). The layers are
numbered as torchvision numbers them, so that its checkpoints fit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

FEWEST_PLACES = 3  # a side, after a pooling


def backbone(groups: Sequence[Sequence[int]], in_channels: int, image_size: int) -> tuple[nn.Module, int]:
    """Return the network up to its features, (B, channels, s, s) -> (B, d), and d.

    Args:
        groups: output channels of the convolutions of each group; d is the last of them.
        in_channels: channels of the images.
        image_size: s, pixels a side.
    """
    layers: list[nn.Module] = []
    side = image_size
    for group in groups:
        for width in group:
            convolution = nn.Conv2d(in_channels, width, kernel_size=3, padding=1)
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
            layers += [convolution, nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            in_channels = width
        pooled = side // 2 >= FEWEST_PLACES
        layers.append(nn.MaxPool2d(2) if pooled else nn.Identity())
        side = side // 2 if pooled else side
    parts = {"features": nn.Sequential(*layers), "pool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten()}
    return nn.Sequential(OrderedDict(parts)), in_channels
