"""``vit_tiny``: ViT-Tiny (Touvron et al., DeiT, ICML 2021) of timm with patches that suit small images.

Width 192, depth 12, three heads; the feature is the class token after the last norm. ImageNet's patches of 16
pixels would leave four tokens of a 32-pixel image, so the patch size follows the image size.
"""

from __future__ import annotations

from timm.models.vision_transformer import VisionTransformer
from torch import nn

from fedlib.errors import InputError

WIDTH, DEPTH, HEADS = 192, 12, 3
LARGEST_PATCH = 16
ENOUGH_PATCHES = 7  # a side; 28 / 4, and no more than half the 14 of ImageNet's 224 / 16


def backbone(in_channels: int, image_size: int) -> tuple[nn.Module, int]:
    """Return the network up to its features, (B, channels, s, s) -> (B, 192), and d = 192.

    Raises:
        InputError: no patch size of 2 to 16 pixels divides ``image_size``.
    """
    net = VisionTransformer(
        img_size=image_size,
        patch_size=patch_size(image_size),
        in_chans=in_channels,
        num_classes=0,  # timm's own head is left out
        embed_dim=WIDTH,
        depth=DEPTH,
        num_heads=HEADS,
    )
    return net, WIDTH


def patch_size(image_size: int) -> int:
    """Return the largest patch that leaves at least 7 x 7 patches, or the smallest one where none does.

    >>> [patch_size(side) for side in (8, 28, 32, 64, 224)]
    [2, 4, 4, 8, 16]

    Raises:
        InputError: no patch size of 2 to 16 pixels divides ``image_size``.
    """
    sizes = [p for p in range(2, LARGEST_PATCH + 1) if image_size % p == 0]
    if not sizes:
        raise InputError(
            f"image_size is {image_size}; allowed for vit_tiny: a multiple of some number from 2 to 16"
        )
    return max((p for p in sizes if image_size // p >= ENOUGH_PATCHES), default=sizes[0])
