"""``mobilenetv2_attention``: MobileNetV2 and one layer of self-attention, the encoder of the VCL-FPFT paper.

The feature map of torchvision's MobileNetV2 (Sandler et al., CVPR 2018), 7 x 7 places of 1280 channels for a
224-pixel image, is read as 49 tokens. One multi-head self-attention layer (8 heads, no residual, no positional
code) maps them to 49 tokens, whose mean is the feature. With the 256-d neck of
:class:`fedlib.models.embedding.Embedder` it has 9,110,784 parameters.

The network halves its input five times. Below 112 pixels the first two halvings are left out, as is usual for
small images (32 pixels then give 4 x 4 tokens); the number of parameters stays the same.
"""

from __future__ import annotations

import torch
from torch import nn
from torchvision.models import mobilenet_v2

WIDTH, HEADS = 1280, 8
SMALL = 112  # pixels; below it two halvings are left out
TORCHVISION = "MobileNet_V2_Weights.IMAGENET1K_V1"
HEAD = ("classifier.",)  # of a checkpoint; not part of the backbone
NEW = ("attention.",)  # of the backbone; not in a checkpoint of MobileNetV2


class MobileNetV2Attention(nn.Module):
    """MobileNetV2's feature map, read as tokens, through self-attention; the mean over the tokens."""

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (B, channels, s, s) to features (B, 1280)."""
        tokens = self.features(x).flatten(2).transpose(1, 2)  # (B, places, 1280)
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        mean: torch.Tensor = mixed.mean(dim=1)
        return mean


def backbone(in_channels: int, image_size: int) -> tuple[nn.Module, int]:
    """Return the network up to its features, (B, channels, s, s) -> (B, 1280), and d = 1280.

    Below 112 pixels (``image_size`` s) the first two halvings are left out.
    """
    features = mobilenet_v2(weights=None).features
    stem = features[0][0]
    if in_channels != stem.in_channels:
        features[0][0] = nn.Conv2d(in_channels, stem.out_channels, 3, stride=2, padding=1, bias=False)
        nn.init.kaiming_normal_(features[0][0].weight, mode="fan_out")  # as torchvision does
    if image_size < SMALL:
        features[0][0].stride = (1, 1)
        features[2].conv[1][0].stride = (1, 1)  # the depthwise convolution of the first block of stride 2
    return MobileNetV2Attention(features), WIDTH


def imagenet() -> tuple[nn.Module, int]:
    """Return the network for 224-pixel RGB images; d = 1280."""
    return backbone(3, 224)
