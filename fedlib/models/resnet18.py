"""``resnet18``: ResNet-18 (He et al., CVPR 2016) of torchvision with the stem for small images."""

from __future__ import annotations

from torch import nn
from torchvision.models import resnet18

from fedlib.models import resnet

TORCHVISION = "ResNet18_Weights.IMAGENET1K_V1"
HEAD = ("fc.",)  # of a checkpoint; not part of the backbone


def backbone(in_channels: int, image_size: int) -> tuple[nn.Module, int]:
    """Return the network up to its features, (B, channels, s, s) -> (B, 512), and d = 512.

    ``image_size`` s makes no difference. With s = 8 the last stage has one place for each image, so a training
    batch of one image has no BatchNorm statistics; torch then raises a ValueError.
    """
    return resnet.headless(resnet.small_stem(resnet18(weights=None), in_channels))


def imagenet() -> tuple[nn.Module, int]:
    """Return the network with the ImageNet stem, for weights that were trained with it; d = 512."""
    return resnet.headless(resnet18(weights=None))
