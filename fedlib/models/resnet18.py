"""``resnet18``: ResNet-18 (He et al., CVPR 2016) of torchvision with the stem for small images.

The ImageNet stem reduces a 32-pixel image to 8 x 8 before the first block. As usual for small images (section 4.2
of that paper), it is replaced by one 3 x 3 convolution of stride 1 without max-pooling.
"""

from __future__ import annotations

from torch import nn
from torchvision.models import resnet18


def backbone(in_channels: int, image_size: int) -> tuple[nn.Module, int]:
    """Return the network up to its features, (B, channels, s, s) -> (B, 512), and d = 512.

    ``image_size`` s makes no difference. With s = 8 the last stage has one place for each image, so a training
    batch of one image has no BatchNorm statistics; torch then raises a ValueError.
    """
    net = resnet18(weights=None)
    net.conv1 = nn.Conv2d(in_channels, 64, kernel_size=3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(
        net.conv1.weight, mode="fan_out", nonlinearity="relu"
    )  # as torchvision does elsewhere
    net.maxpool = nn.Identity()
    dim = net.fc.in_features
    net.fc = nn.Identity()
    return net, dim
