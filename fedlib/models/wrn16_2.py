"""``wrn16_2``: Wide ResNet of depth 16 and width 2 (Zagoruyko and Komodakis, BMVC 2016).

Pre-activation blocks of two 3 x 3 convolutions; three groups of two blocks with 32, 64 and 128 channels, the last
two with stride 2. 691,674 parameters for ten classes of RGB images.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

DEPTH, WIDEN = 16, 2
BLOCKS = (DEPTH - 4) // 6  # in a group


class Block(nn.Module):
    """BN - ReLU - conv - BN - ReLU - conv plus the input, or its 1 x 1 projection where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, padding=1, bias=False)
        self.shortcut: nn.Conv2d | None = None
        if channels != width:
            self.shortcut = nn.Conv2d(channels, width, kernel_size=1, stride=stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, channels, H, W) to (B, width, H / stride, W / stride)."""
        active = functional.relu(self.bn1(x))
        out = self.conv2(functional.relu(self.bn2(self.conv1(active))))
        # A projected shortcut starts from the activated input, as in the authors' network.
        total: torch.Tensor = out + (x if self.shortcut is None else self.shortcut(active))
        return total


def backbone(in_channels: int, image_size: int) -> tuple[nn.Module, int]:
    """Return the network up to its features, (B, channels, s, s) -> (B, 128), and d = 128.

    ``image_size`` s makes no difference.
    """
    layers: list[nn.Module] = [nn.Conv2d(in_channels, 16, kernel_size=3, padding=1, bias=False)]
    channels = 16
    for group in range(3):
        width = 16 * WIDEN * 2**group
        for block in range(BLOCKS):
            layers.append(Block(channels, width, stride=2 if group and not block else 1))
            channels = width
    net = nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return net, channels
