"""Orthogonal weights modification (Zeng et al., Nature Machine Intelligence 2019).

A recursive least-squares estimate of the projector onto the complement of earlier inputs multiplies the gradients.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from fedlib.errors import InputError, choose
from fedlib.federation.model_state import State
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual.inputs import linear_maps, matrices, matrix, recorded
from fedlib.methods.continual.strategy import Context, Strategy, evaluation
from fedlib.methods.continual.training import Training, fit
from fedlib.methods.vcl.head import GrowingHead

LARGEST = 2048  # inputs of a layer that has a projector
DECAY = {"conv": 1e-5, "first": 1e-4, "later": 1e-2, "head": 0.1}  # lambda of the authors' schedule


def updated(p: Tensor, x: Tensor, alpha: float) -> Tensor:
    """Return the projector after the inputs x.

        P <- P - P x x^T P / (alpha + x^T P x)    for one input after the other with one alpha, in closed form:
        P <- P - P X (alpha I + X^T P X)^-1 X^T P

    The closed form depends on X X^T only, so more than p inputs are replaced by the p columns of the triangle of
    their QR decomposition: a convolution at 224 pixels has 50,176 places, and the inverse would have 20 GB.

    Args:
        p: P (p, p) float64, symmetric.
        x: inputs (L, p) float64.
        alpha: > 0; infinity leaves P as it is.
    """
    if alpha == float("inf"):
        return p
    if len(x) > x.shape[1]:
        x = torch.linalg.qr(x, mode="r").R
    px = p @ x.T  # (p, L)
    inner = x @ px
    inner.diagonal().add_(alpha)
    reduced = p - px @ torch.cholesky_solve(px.T, torch.linalg.cholesky(inner))
    return (reduced + reduced.T) / 2


@dataclass(kw_only=True)
class OWM(Strategy):
    """From the second task on G <- G P for each linear map, whose inputs have a 1 appended for the bias.

    Parameters without a projector (layers that are not among ``layers`` or have more than 2,048 inputs,
    convolutions in groups, attention, norms) are fixed after the first task: what they feed to the projected
    layers must not change.

    Memory, whatever the size of the images: p^2 float64 for each layer of p inputs, 34 MB at most, and the
    patches of one image.

    Attributes:
        update: P changes ``after_task`` from one pass over its samples (paper), or ``online`` after each batch of
            the training (authors' code).
        alpha: alpha_0 of alpha_i = alpha_0 lambda^(i/n), i-th of n batches; infinity leaves all P at I.
        layers: number of last linear maps with a projector; None for all.
        rest: ``freeze`` or ``train`` the parameters without a projector.
        momentum: of SGD; None for the suite's.
        clip: largest norm of the gradient; None for the suite's.
    """

    label: ClassVar[str] = "OWM"
    category: ClassVar[str] = "R"
    stores: ClassVar[str] = "projector of each layer"

    update: Literal["after_task", "online"] = "after_task"
    alpha: float = 1.0
    layers: int | None = None
    rest: Literal["freeze", "train"] = "freeze"
    momentum: float | None = 0.9
    clip: float | None = 10.0

    maps: dict[str, nn.Module] = field(init=False, repr=False)
    decay: dict[str, float] = field(init=False, repr=False)
    projectors: dict[str, Tensor] = field(init=False, repr=False)  # float64
    _latest: dict[str, Tensor] = field(init=False, repr=False)
    _step: int = field(init=False, repr=False)
    _steps: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        choose("update", self.update, ("after_task", "online"))
        choose("rest", self.rest, ("freeze", "train"))
        if not self.alpha > 0 or not (self.layers is None or self.layers >= 1):
            raise InputError(
                f"alpha is {self.alpha!r} and layers {self.layers!r}; allowed: above 0; at least 1 or None"
            )

    @classmethod
    def small(cls) -> Self:
        """Return the budget for small images: projectors of the last two layers."""
        return cls(layers=2)

    def adapt(self, training: Training) -> Training:
        """Return the suite's settings with the method's momentum and clipping; weight decay would evade P."""
        momentum = training.momentum if self.momentum is None else self.momentum
        return replace(training, momentum=momentum, clip=self.clip or training.clip, weight_decay=0.0)

    def start(self, context: Context) -> None:
        """Begin with P = I.

        Raises:
            InputError: no layer is small enough for a projector.
        """
        super().start(context)
        found = matrices(linear_maps(self.net, context.data.batch(torch.arange(1))[0]))
        chosen = list(found.items())[-(self.layers or 0) :]
        self.maps = {name: module for name, module in chosen if width(module) <= LARGEST}
        if not self.maps:
            raise InputError(
                f"all chosen layers have over {LARGEST} inputs; allowed for OWM: at most that in one"
            )
        linear = [name for name, module in found.items() if isinstance(module, nn.Linear)]
        kinds = {name: "first" if name == linear[0] else "later" for name in linear}
        self.decay = {
            name: DECAY["head" if isinstance(module, GrowingHead) else kinds.get(name, "conv")]
            for name, module in self.maps.items()
        }
        self.projectors = {
            name: torch.eye(width(module), dtype=torch.float64, device=self.net.head.weight.device)
            for name, module in self.maps.items()
        }
        self._latest, self._step, self._steps = {}, 0, 1

    def learn(self, data: ImageData, validation: ImageData | None) -> list[dict[str, float]]:
        """Train; the online variant looks at the inputs of each batch."""
        settings = self.adapt(self.context.training)
        self._step, self._steps = 0, settings.epochs * -(-len(data) // settings.batch_size)
        with ExitStack() as stack:
            if self.update == "online":
                self._latest = stack.enter_context(recorded(self.maps))
            return fit(self, data, validation, settings, method=self.label)

    def after_backward(self) -> None:
        """Project the gradients."""
        if self.context.t == 0:
            return
        projected: set[int] = set()
        for name, module in self.maps.items():
            weight, bias = module.get_parameter("weight"), module._parameters.get("bias")
            if weight.grad is not None:
                rows = [weight.grad.reshape(len(weight), -1)]
                rows += [bias.grad[:, None]] if bias is not None and bias.grad is not None else []
                # G <- G P
                g = torch.cat(rows, dim=1)
                g = (g.double() @ self.projectors[name]).to(g.dtype)
                weight.grad.copy_(g[:, : weight[0].numel()].view_as(weight))
                if bias is not None and bias.grad is not None:
                    bias.grad.copy_(g[:, -1])
            projected |= {id(weight), id(bias)}
        if self.rest == "freeze":
            for p in self.net.parameters():
                if id(p) not in projected and p.grad is not None:
                    p.grad.zero_()

    def after_step(self, old: State) -> None:
        """Update P with the batch if ``online``."""
        if self.update == "online":
            self.look(self._latest, self._step / self._steps)
            self._step += 1

    def look(self, latest: dict[str, Tensor], progress: float) -> None:
        """Update all P with the mean input, at each place, of a batch; ``progress`` is i / n."""
        for name, module in self.maps.items():
            # xbar = mean over the batch, at each place of a convolution; patches of a mean are the mean of patches
            x = matrix(module, latest[name].mean(0, keepdim=True))[0].double()
            if has_bias(module):
                x = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
            self.projectors[name] = updated(
                self.projectors[name], x, self.alpha * self.decay[name] ** progress
            )

    def end_task(self, data: ImageData) -> None:
        """Update P with one pass over the task if ``after_task``."""
        if self.update == "online":
            return
        size = self.context.training.batch_size
        order = torch.randperm(len(data), generator=self.context.generator("projector")).split(size)
        with recorded(self.maps) as latest, evaluation(self.net), torch.no_grad():
            for i, rows in enumerate(order, start=1):
                self.net(data.batch(rows)[0])
                self.look(latest, i / len(order))

    def state_dict(self) -> State:
        """Return the projectors."""
        return dict(self.projectors)


def has_bias(module: nn.Module) -> bool:
    """Say whether a linear map has a bias."""
    return module._parameters.get("bias") is not None


def width(module: nn.Module) -> int:
    """Return the number of inputs of a linear map, with the 1 for its bias."""
    weight = module.get_parameter("weight")
    inputs = weight.shape[1] if weight.ndim == 2 else weight.shape[1] * weight.shape[2] * weight.shape[3]
    return int(inputs) + has_bias(module)
