"""What the two ResNets (He et al., CVPR 2016) of torchvision have in common.

The ImageNet stem reduces a 32-pixel image to 8 x 8 before the first block. As usual for small images (section 4.2
of that paper), it is replaced by one 3 x 3 convolution of stride 1 without max-pooling.
"""

from __future__ import annotations

from torch import nn
from torchvision.models import ResNet


def headless(net: ResNet) -> tuple[nn.Module, int]:
    """Return the network without its linear head, and the length of its features."""
    dim = net.fc.in_features
    net.fc = nn.Identity()
    return net, dim


def small_stem(net: ResNet, in_channels: int) -> ResNet:
    """Put the stem for small images of ``in_channels`` channels in place."""
    net.conv1 = nn.Conv2d(in_channels, 64, kernel_size=3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(
        net.conv1.weight, mode="fan_out", nonlinearity="relu"
    )  # as torchvision does elsewhere
    net.maxpool = nn.Identity()
    return net
