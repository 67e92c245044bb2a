"""``vgg8_bn``: the VGG with five convolutions and BatchNorm of work on distillation (Tian et al., ICLR 2020)."""

from __future__ import annotations

from torch import nn

from fedlib.models import vgg

GROUPS = ((64,), (128,), (256,), (512,), (512,))


def backbone(in_channels: int, image_size: int) -> tuple[nn.Module, int]:
    """Return the network up to its features, (B, channels, s, s) -> (B, 512), and d = 512."""
    return vgg.backbone(GROUPS, in_channels, image_size)
