"""The generator of DAFL (Chen et al., ICCV 2019) and DENSE (Zhang et al., NeurIPS 2022)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from fedlib import seeds
from fedlib.methods.oneshot.base import Problem


class Generator(nn.Module):
    """Maps noise (B, nz) to images (B, channels, s, s).

    Linear to ``width`` channels on a quarter of the side, BatchNorm, twice as large, convolution to as many
    channels, BatchNorm, LeakyReLU(0.2), to full size, convolution to half as many, BatchNorm, LeakyReLU(0.2),
    convolution to the image.

    Args:
        nz: length of the noise.
        channels: of the images.
        image_size: s; a side that four does not divide is reached by the last enlargement.
        output: ``tanh`` (DAFL), followed by a BatchNorm without parameters, so that images have mean 0 and
            standard deviation 1 per channel; ``sigmoid`` (DENSE), values 0 to 1.
        width: channels of the first layers; 128 in both papers.
    """

    def __init__(
        self, nz: int, channels: int, image_size: int, output: Literal["tanh", "sigmoid"], width: int
    ) -> None:
        super().__init__()
        self.side = -(-image_size // 4)
        self.start = nn.Linear(nz, width * self.side**2)
        end: list[nn.Module] = [nn.Sigmoid()]
        if output == "tanh":
            end = [nn.Tanh(), nn.BatchNorm2d(channels, affine=False)]
        self.layers = nn.Sequential(
            nn.BatchNorm2d(width),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(width, width, kernel_size=3, padding=1),
            nn.BatchNorm2d(width),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Upsample(size=image_size),
            nn.Conv2d(width, width // 2, kernel_size=3, padding=1),
            nn.BatchNorm2d(width // 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width // 2, channels, kernel_size=3, padding=1),
            *end,
        )

    def forward(self, noise: Tensor) -> Tensor:
        """Return images (B, channels, s, s) for noise (B, nz)."""
        images: Tensor = self.layers(self.start(noise).unflatten(1, (-1, self.side, self.side)))
        return images


def new_generator(
    nz: int,
    problem: Problem,
    output: Literal["tanh", "sigmoid"],
    width: int,
    device: torch.device,
    seed: int,
    *path: int | str,
) -> Generator:
    """Return a generator with fresh weights from the stream ``(seed, *path)``, in training mode."""
    with seeds.torch_global(seed, *path):
        generator = Generator(nz, problem.channels, problem.image_size, output, width)
    return generator.to(device)
