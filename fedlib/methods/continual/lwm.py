"""Learning without memorizing (Dhar et al., CVPR 2019): keep the old outputs and where the network looks."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedlib.errors import InputError
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual.lwf import LwF
from fedlib.methods.continual.strategy import Context, Net, evaluation, non_negative


def last_map(net: Net, x: Tensor) -> str:
    """Return the name of the last module that gives maps (B, K, h, w) of more than one place.

    Raises:
        InputError: there is none.
    """
    names = {module: name for name, module in net.named_modules()}
    found: list[str] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(output, Tensor) and output.ndim == 4 and output.shape[2] * output.shape[3] > 1:
            found.append(names[module])

    hooks = [module.register_forward_hook(note) for module in names]
    with evaluation(net), torch.no_grad():
        net(x)
    for hook in hooks:
        hook.remove()
    if not found:
        raise InputError(
            "the network has no convolution map of more than one place; allowed for LwM: one that has"
        )
    return found[-1]


def attention(
    net: Net, layer: str, x: Tensor, classes: Tensor | None, rows: int, leaf: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return Grad-CAM maps and logits.

        Q = vec relu(sum_k w_k A_k),   w_k = spatial mean of d score_b / d A_k

    Args:
        net: the network, in the mode that is wanted.
        layer: name of the module that gives the maps A (B, K, h, w).
        x: images (B, channels, H, W).
        classes: b of each image (B,); None for the most likely of the first ``rows`` rows.
        rows: of the head.
        leaf: cut the graph below A, for a network that is not trained; else Q has gradients in all parameters.

    Returns:
        Q (B, h w), the logits (B, C), and b (B,).
    """
    maps: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        maps.append(output.detach().requires_grad_() if leaf else output)
        return maps[-1]

    hook = net.get_submodule(layer).register_forward_hook(keep)
    with torch.enable_grad():
        with (
            nullcontext() if leaf else sdpa_kernel(SDPBackend.MATH)
        ):  # the fused ones have no second derivative
            logits = net(x)
        hook.remove()
        b = logits[:, :rows].argmax(1) if classes is None else classes
        score = logits.gather(1, b[:, None]).sum()
        # The graph of this gradient is what lets the loss reach the student's parameters through the weights w_k.
        (slope,) = torch.autograd.grad(score, maps[-1], create_graph=not leaf)
        q = (slope.mean(dim=(2, 3), keepdim=True) * maps[-1]).sum(1).relu().flatten(1)
    return (q.detach() if leaf else q), logits, b


def attention_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean over samples of || Q_old / ||Q_old||_2 - Q_new / ||Q_new||_2 ||_1, ().

    Args:
        student: Q_new (B, n).
        teacher: Q_old (B, n).
    """
    old, new = (functional.normalize(q, dim=1) for q in (teacher, student))
    return (old - new).abs().sum(1).mean()


@dataclass(kw_only=True)
class LwM(LwF):
    """Loss CE + beta KD_T + gamma L_attention; b is the teacher's most likely old class.

    Attributes:
        strength: beta.
        gamma: weight of the attention term; the paper gives none.
        layer: name of the module whose maps count; None for the last one with more than one place.
    """

    label: ClassVar[str] = "LwM"

    gamma: float = 1.0
    layer: str | None = None

    maps_of: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        non_negative(gamma=self.gamma)

    def start(self, context: Context) -> None:
        """Find the maps.

        Raises:
            InputError: no such layer, or no maps.
        """
        super().start(context)
        if self.layer is not None and self.layer not in dict(self.net.named_modules()):
            raise InputError(f"layer is {self.layer!r}; allowed: a module of the network, or None")
        self.maps_of = self.layer or ""

    def begin_task(self, data: ImageData) -> None:
        """Find the maps, which takes a network with a head."""
        if not self.maps_of:
            self.maps_of = last_map(self.net, data.batch(torch.arange(1))[0])

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy with both terms."""
        if self.teacher is None:
            return super().loss(x, y)
        old, targets, b = attention(self.teacher, self.maps_of, x, None, self.old, leaf=True)
        new, logits, _ = attention(self.net, self.maps_of, x, b, self.old, leaf=False)
        return (
            self.cross_entropy(logits, y)
            + self.strength * self.distillation(logits, targets.detach())
            + self.gamma * attention_loss(new, old)
        )
