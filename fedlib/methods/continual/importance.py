"""How much each parameter matters: moments of per-sample gradients, taken in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib.errors import choose
from fedlib.federation.model_state import State
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual.strategy import evaluation

FISHERS = ("expected", "empirical", "max_pred", "batch")


def gradient_moments(
    module: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    data: ImageData,
    objective: Callable[[Tensor, Tensor], Tensor],
    moment: Literal["abs", "square"],
    batch_size: int = 1,
) -> State:
    """Return the mean over batches, weighted by their sizes, of ``sum_k |d v_k / d theta|`` or its square.

    With batches of one this is the mean over samples. Modes, gradients and BatchNorm statistics stay as they were.

    Args:
        module: maps images (B, channels, H, W) to logits (B, C).
        parameters: those to differentiate by.
        data: samples.
        objective: maps logits (B, C) and labels (B,) to values v (K,).
        moment: of the gradients.
        batch_size: samples of one gradient.
    """
    values = list(parameters.values())
    total = [torch.zeros_like(p) for p in values]
    with evaluation(module), torch.enable_grad():
        for rows in torch.arange(len(data)).split(batch_size):
            x, y = data.batch(rows)
            outputs = objective(module(x), y)
            for k in range(len(outputs)):
                gradients = torch.autograd.grad(
                    outputs[k], values, retain_graph=k + 1 < len(outputs), allow_unused=True
                )
                for sum_, g in zip(total, gradients):
                    if g is not None:
                        sum_ += len(rows) * (g.square() if moment == "square" else g.abs())
    return {name: sum_ / len(data) for name, sum_ in zip(parameters, total)}


def sample(data: ImageData, count: int | None, generator: torch.Generator) -> ImageData:
    """Return ``count`` samples drawn without replacement, or all where there are no more or count is None."""
    if count is None or count >= len(data):
        return data
    return data.subset(torch.randperm(len(data), generator=generator)[:count].numpy())


def fisher(
    module: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    data: ImageData,
    rows: slice,
    targets: Callable[[Tensor], Tensor],
    kind: str,
    batch_size: int,
) -> State:
    """Return the diagonal of the Fisher information.

        expected   E_x sum_y p(y|x) (d log p(y|x) / d theta)^2
        empirical  E_x (d log p(y|x) / d theta)^2 at the true label y
        max_pred   the same at the most likely label
        batch      that of the mean gradient of a batch, as FACIL has it; smaller by up to the batch size

    Args:
        module: maps images to logits (B, C).
        parameters: theta.
        data: samples.
        rows: of the logits that form p(y|x).
        targets: maps labels to rows of the logits.
        kind: see above.
        batch_size: for ``batch``.

    Raises:
        InputError: unknown kind.
    """
    choose("fisher", kind, FISHERS)

    def expected(logits: Tensor, y: Tensor) -> Tensor:
        log_p = functional.log_softmax(logits[0, rows], dim=0)
        # The square of the gradient of sqrt(p) log p, with p held fixed, is p (d log p / d theta)^2.
        return log_p.exp().sqrt().detach() * log_p

    def at_label(logits: Tensor, y: Tensor) -> Tensor:
        chosen = logits[:, rows]
        label = targets(y) - rows.start if kind == "empirical" else chosen.argmax(1)
        return functional.cross_entropy(chosen, label)[None]

    objective = expected if kind == "expected" else at_label
    return gradient_moments(
        module, parameters, data, objective, "square", batch_size if kind == "batch" else 1
    )
