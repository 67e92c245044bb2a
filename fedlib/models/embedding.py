"""Encoders: a backbone, a linear neck without bias and a LayerNorm, whatever the backbone (VCL-FPFT, section 3).

Clients with different backbones thereby map into one space of d dimensions.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

IMAGENET_SIZE = 224  # pixels
NOISE_IMAGES = 16  # for the BatchNorm statistics of random weights


class Embedder(nn.Module):
    """Maps images to vectors: z = LayerNorm(W backbone(x)), not l2-normalised.

    The images are prepared as the VCL-FPFT code does it: one channel is copied to three where the backbone wants
    three, and the side is changed bilinearly where the backbone wants another one. Pixel values are scaled by the
    data (that code and EfficientNet-Lite: mean 0.5, standard deviation 0.5).

    Args:
        backbone: maps (B, channels, s, s) to (B, d0).
        backbone_dim: d0.
        dim: d.
        channels: that the backbone takes.
        input_size: s, pixels a side.

    Attributes:
        source: where the weights are from: ``random``, or the name of a checkpoint.

    Random weights come with BatchNorm statistics that :func:`calibrate` measured on noise.
    """

    def __init__(
        self, backbone: nn.Module, backbone_dim: int, dim: int, channels: int, input_size: int
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.neck = nn.Linear(backbone_dim, dim, bias=False)
        nn.init.kaiming_normal_(self.neck.weight, nonlinearity="linear")
        self.norm = nn.LayerNorm(dim)
        self.channels, self.input_size = channels, input_size
        self.source = "random"

    @property
    def feature_dim(self) -> int:
        """Length d of a vector."""
        return self.neck.out_features

    @property
    def num_parameters(self) -> int:
        """Number of parameters, trainable or frozen; buffers such as BatchNorm statistics do not count."""
        return sum(p.numel() for p in self.parameters())

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return the vectors (B, d) of images (B, channels, H, W), float32; the same as a call."""
        if x.shape[1] == 1 and self.channels > 1:
            x = x.expand(-1, self.channels, -1, -1)
        if x.shape[-2:] != (self.input_size, self.input_size):
            size = (self.input_size, self.input_size)
            x = functional.interpolate(x, size, mode="bilinear", align_corners=False, antialias=True)
        z: torch.Tensor = self.norm(self.neck(self.backbone(x)))
        return z

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the vectors (B, d) of images (B, channels, H, W), float32."""
        return self.features(x)


def calibrate(model: Embedder, generator: torch.Generator) -> None:
    """Set the BatchNorm statistics to those of images of noise, half of it white and half of it coarse.

    With its initial statistics (mean 0, variance 1) a deep random network in evaluation mode loses its signal:
    MobileNetV2's features vary by less than the LayerNorm's epsilon, and all images get the same vector. Encoders
    with frozen BatchNorm (VCL-FPFT, section 3) would stay there.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    if not layers:
        return
    side, coarse = model.input_size, max(2, model.input_size // 8)
    white = torch.randn(NOISE_IMAGES, model.channels, side, side, generator=generator)
    smooth = torch.randn(NOISE_IMAGES, model.channels, coarse, coarse, generator=generator)
    smooth = functional.interpolate(smooth, (side, side), mode="bilinear", align_corners=False)
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 1.0  # the statistics of this batch and no others
    with torch.no_grad():
        model((white + smooth) / 2**0.5)
    for layer, momentum in zip(layers, momenta):
        layer.momentum = momentum
