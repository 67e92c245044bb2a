"""``mobilenet_v3_small``: MobileNetV3-Small (Howard et al., ICCV 2019) of torchvision, stem of stride 1.

The network halves its input five times. For images of 8 to 64 pixels the first halving is left out, as is usual;
the number of parameters stays the same. Features are the output of the hidden linear layer, after its dropout.
"""

from __future__ import annotations

from torch import nn
from torchvision.models import mobilenet_v3_small


def backbone(in_channels: int, image_size: int) -> tuple[nn.Module, int]:
    """Return the network up to its features, (B, channels, s, s) -> (B, 1024), and d = 1024.

    ``image_size`` s makes no difference. In training mode the features pass a dropout of 0.2, which draws from
    torch's global stream.
    """
    net = mobilenet_v3_small(weights=None)
    stem = net.features[0][0]
    net.features[0][0] = nn.Conv2d(
        in_channels, stem.out_channels, kernel_size=3, stride=1, padding=1, bias=False
    )
    nn.init.kaiming_normal_(net.features[0][0].weight, mode="fan_out")  # as torchvision does elsewhere
    dim = net.classifier[-1].in_features
    net.classifier = net.classifier[:-1]
    return net, dim
