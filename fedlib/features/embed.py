"""Features of a whole data set under a fixed model."""

from __future__ import annotations

import torch

from fedlib.models import Classifier, Embedder


def embed(model: Classifier | Embedder, images: torch.Tensor, batch_size: int = 128) -> torch.Tensor:
    """Return the features of all images in evaluation mode, (N, d), on the images' device.

    The model's mode is put back afterwards; no gradients are kept and no BatchNorm statistics change.

    Args:
        model: on the same device as the images.
        images: (N, channels, H, W), as :meth:`fedlib.data.Normalizer.apply` gives them; N may be 0.
        batch_size: images at a time; about 128 is fastest on a CPU.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            batches = [model.features(batch) for batch in images.split(batch_size)] if len(images) else []
    finally:
        model.train(was_training)
    return torch.cat(batches) if batches else images.new_empty(0, model.feature_dim)
