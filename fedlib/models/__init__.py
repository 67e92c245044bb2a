"""Backbones behind one interface: every model gives ``features(x)`` and logits.

A model is one module with a function ``backbone(in_channels, image_size) -> (nn.Module, feature_dim)`` and one
line in ``MODULES``. Modules are named as text so that only the one that is asked for is imported.
"""

from __future__ import annotations

import importlib

import torch
from torch import nn

from fedlib import seeds
from fedlib.errors import InputError, choose
from fedlib.models.base import Classifier

MODULES = {
    "cnn3": "fedlib.models.cnn3",
    "resnet18": "fedlib.models.resnet18",
    "mobilenet_v3_small": "fedlib.models.mobilenet_v3_small",
    "vit_tiny": "fedlib.models.vit_tiny",
}
SMALLEST_IMAGE = 8  # pixels; three halvings leave one place

__all__ = ["Classifier", "available", "build", "module_of", "parameter_count"]


def available() -> list[str]:
    """Return the names that :func:`build` takes."""
    return list(MODULES)


def module_of(name: str) -> str:
    """Return the dotted name of the module that defines a model, for the record of the code that a run used.

    Raises:
        InputError: unknown name.
    """
    return MODULES[choose("model", name, MODULES)]


def build(name: str, *, num_classes: int, in_channels: int, image_size: int, seed: int) -> Classifier:
    """Build a classifier with fresh weights, in ``channels_last`` memory layout and training mode.

    The weights depend on the arguments alone; torch's global random stream is left as it was.

    Args:
        name: one of :func:`available`.
        num_classes: C >= 2.
        in_channels: channels of the images, >= 1.
        image_size: side of the square images in pixels, >= 8.
        seed: of the experiment.

    Raises:
        InputError: unknown name, or a value out of range.
    """
    module = importlib.import_module(module_of(name))
    for what, value, least in (
        ("num_classes", num_classes, 2),
        ("in_channels", in_channels, 1),
        ("image_size", image_size, SMALLEST_IMAGE),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{what} of {name} is {value!r}; allowed: an integer >= {least}")
    with seeds.torch_global(seed, "weights", name):
        backbone, feature_dim = module.backbone(in_channels, image_size)
        model = Classifier(backbone, feature_dim, num_classes)
    return model.to(memory_format=torch.channels_last)


def parameter_count(model: nn.Module) -> int:
    """Return the number of trainable values; buffers such as BatchNorm statistics do not count."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
