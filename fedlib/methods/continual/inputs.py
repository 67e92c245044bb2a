"""What goes into the linear maps of a network: GPM and OWM keep gradients away from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib.methods.continual.strategy import Net, evaluation
from fedlib.methods.vcl.head import GrowingHead


def linear_maps(net: Net, x: Tensor) -> dict[str, nn.Module]:
    """Return convolutions, linear layers and the head by name, in the order in which they are applied to ``x``."""
    kinds = (nn.Conv2d, nn.Linear, GrowingHead)
    maps: dict[str, nn.Module] = {n: module for n, module in net.named_modules() if isinstance(module, kinds)}
    with recorded(maps) as latest, evaluation(net), torch.no_grad():
        net(x)
    return {name: maps[name] for name in latest}


def matrices(maps: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Return the maps that are one matrix on patches that :func:`matrix` can cut.

    Convolutions in groups are several matrices; some of timm's (TensorFlow's padding) pad on their own.
    """
    return {name: module for name, module in maps.items() if _is_matrix(module)}


def _is_matrix(module: nn.Module) -> bool:
    if not isinstance(module, nn.Conv2d):
        return True
    own = type(module).forward is nn.Conv2d.forward and module.padding_mode == "zeros"
    return own and module.groups == 1 and not isinstance(module.padding, str)


def matrix(module: nn.Module, x: Tensor) -> Tensor:
    """Return the inputs of a linear map as rows (B, L, p), one for each place where the map is applied.

    Args:
        module: as :func:`matrices` gives it; a weight (out, ...) has p values in each row.
        x: its input: (B, C, H, W) for a convolution, else (B, ..., p).
    """
    if isinstance(module, nn.Conv2d):
        assert not isinstance(module.padding, str)  # `matrices` leaves those out
        patches = functional.unfold(
            x, module.kernel_size, dilation=module.dilation, padding=module.padding, stride=module.stride
        )
        return patches.transpose(1, 2)
    return x.reshape(len(x), -1, x.shape[-1])


@contextmanager
def recorded(modules: dict[str, nn.Module]) -> Iterator[dict[str, Tensor]]:
    """Yield a dictionary that holds each module's latest input, detached, by name."""
    latest: dict[str, Tensor] = {}

    def hook(name: str) -> object:
        def keep(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            latest[name] = args[0].detach()

        return keep

    hooks = [module.register_forward_pre_hook(hook(name)) for name, module in modules.items()]  # type: ignore[arg-type]
    try:
        yield latest
    finally:
        for handle in hooks:
            handle.remove()
