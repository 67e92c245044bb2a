"""From the bytes of a data set to the tensors of a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fedlib.data.imageset import Split
from fedlib.errors import InputError


@dataclass(frozen=True)
class Normalizer:
    """Scales each channel to mean 0 and standard deviation 1 on the images it was fitted to.

    Attributes:
        mean: per channel, in units of the full scale (0 to 1).
        std: per channel, in units of the full scale, > 0.

    >>> images = np.array([[[[0], [255]]]], dtype=np.uint8)
    >>> Normalizer.fit(images).apply(images).flatten()
    tensor([-1.,  1.])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def fit(cls, images: np.ndarray) -> Normalizer:
        """Measure mean and standard deviation of each channel over all pixels of uint8 (N, H, W, C) images.

        Exact: it counts how often each of the 256 values occurs.

        Raises:
            InputError: not uint8 images, none at all, or a channel with one value only.
        """
        _check(images)
        if images.size == 0:
            raise InputError("cannot fit to 0 images; allowed: at least one")
        values = np.arange(256) / 255
        mean, std = [], []
        for channel in range(images.shape[3]):
            counts = np.zeros(256)
            for chunk in np.array_split(images[..., channel], max(1, len(images) // 1024)):
                counts += np.bincount(chunk.ravel(), minlength=256)
            share = counts / counts.sum()
            centre = float(share @ values)
            spread = float(np.sqrt(share @ (values - centre) ** 2))
            if spread == 0:
                raise InputError(
                    f"channel {channel} is {centre * 255:.0f} in every pixel; allowed: at least two values"
                )
            mean.append(centre)
            std.append(spread)
        return cls(tuple(mean), tuple(std))

    def apply(self, images: np.ndarray) -> torch.Tensor:
        """Return uint8 (N, H, W, C) images as float32 (N, C, H, W) in ``channels_last`` memory layout.

        Raises:
            InputError: not uint8 images, or another number of channels than fitted to.
        """
        _check(images)
        if images.shape[3] != len(self.mean):
            raise InputError(f"images have {images.shape[3]} channels; fitted to {len(self.mean)}")
        scale = 1 / (255 * np.asarray(self.std))
        shift = -np.asarray(self.mean) / np.asarray(self.std)
        scaled = images.astype(np.float32, order="C")
        scaled *= scale.astype(np.float32)
        scaled += shift.astype(np.float32)
        # height x width x channel order in memory *is* channels_last, so the permutation copies nothing
        return torch.from_numpy(scaled).permute(0, 3, 1, 2)

    def tensors(self, split: Split) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images as :meth:`apply` gives them and labels as int64 (N,)."""
        return self.apply(split.images), torch.tensor(split.labels)


def _check(images: np.ndarray) -> None:
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 4:
        what = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else type(images).__name__
        raise InputError(f"images are {what}; allowed: a uint8 array of shape (N, H, W, C)")
