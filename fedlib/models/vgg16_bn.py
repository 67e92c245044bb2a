"""``vgg16_bn``: VGG-16 (Simonyan and Zisserman, ICLR 2015, configuration D) with BatchNorm, no linear layers."""

from __future__ import annotations

from torch import nn

from fedlib.models import vgg

GROUPS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
TORCHVISION = "VGG16_BN_Weights.IMAGENET1K_V1"
HEAD = ("classifier.",)  # of a checkpoint; not part of the backbone


def backbone(in_channels: int, image_size: int) -> tuple[nn.Module, int]:
    """Return the network up to its features, (B, channels, s, s) -> (B, 512), and d = 512."""
    return vgg.backbone(GROUPS, in_channels, image_size)


def imagenet() -> tuple[nn.Module, int]:
    """Return the network for 224-pixel RGB images; d = 512."""
    return vgg.backbone(GROUPS, 3, 224)
