"""What the layers of a model give out for an input, as matrices whose rows are comparable items.

Verhoog et al. 2026 flatten activations to (n, p) without saying what a row is. ``positions`` (the default, as in
the authors' public code): the places inside one input are the rows, channels the columns. ``inputs``: the whole
output for one input is one row. ``pooled``: the places of all inputs together. With far fewer rows than columns
the biased CKA of *unrelated* features is near 1 (its mean is 1 / (1 + n / p)), so ``inputs`` needs the unbiased
estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

Rows = Literal["positions", "inputs", "pooled"]

CHANNEL_FIRST = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,  # BatchNorm and InstanceNorm
    nn.GroupNorm,
)


def tensor_of(output: Any) -> Tensor | None:
    """Return the activation in a module's output: itself, or the first floating tensor in it."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() and output.dim() > 0 else None
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, Sequence):
        return next((t for t in map(tensor_of, output) if t is not None), None)
    return None


def to_rows(module: nn.Module, output: Tensor, rows: Rows) -> Tensor:
    """Return an activation as a matrix.

    The channel axis follows from the type of the module, not from the number of dimensions: 1 for convolutions,
    BatchNorm, GroupNorm and InstanceNorm, the last one for all others (a linear map may be applied to image
    tokens (B, V, T, d)).

    Args:
        module: the module that gave it.
        output: (B, ...).
        rows: ``positions`` or ``pooled`` give (B * places, channels), ``inputs`` gives (B, everything else).
    """
    if rows == "inputs":
        return output.reshape(len(output), -1)
    if isinstance(module, CHANNEL_FIRST) and output.dim() > 2:
        output = output.movedim(1, -1)
    return output.reshape(-1, output.shape[-1])


@contextmanager
def observed(
    model: nn.Module, see: Callable[[str, nn.Module, Any], None], names: Set[str] | None = None
) -> Iterator[None]:
    """Call ``see(name, module, output)`` for every call of the modules ``names`` (None: all) in the block.

    The model is in evaluation mode and without gradients inside; its training flags are put back.
    """
    flags = {module: module.training for module in model.modules()}
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if names is not None and name not in names:
                continue

            def hook(module: nn.Module, _: Any, output: Any, name: str = name) -> None:
                see(name, module, output)

            stack.callback(module.register_forward_hook(hook).remove)
        stack.callback(_put_back, flags)
        stack.enter_context(torch.no_grad())
        model.eval()
        yield


def _put_back(flags: dict[nn.Module, bool]) -> None:
    for module, flag in flags.items():
        module.training = flag


@contextmanager
def recording(model: nn.Module, names: Set[str], rows: Rows | None) -> Iterator[dict[str, list[Tensor]]]:
    """Collect the activations of the modules ``names`` in the block's forward passes.

    Args:
        model: the model; see ``observed`` for what happens to it.
        names: names of modules.
        rows: see ``to_rows``; None leaves outputs in their shapes.

    Yields:
        by module name a list of matrices (n, p) float32, one per call; outputs are copied at once, because a
        following in-place operation may overwrite them.
    """
    found: dict[str, list[Tensor]] = {}

    def keep(name: str, module: nn.Module, output: Any) -> None:
        tensor = tensor_of(output)
        if tensor is not None:
            kept = tensor.detach() if rows is None else to_rows(module, tensor.detach(), rows)
            found.setdefault(name, []).append(kept.to("cpu", torch.float32, copy=True))

    with observed(model, keep, names):
        yield found


def called_modules(model: nn.Module, forward: Callable[[nn.Module], Any]) -> set[str]:
    """Return the names of the modules that ``forward(model)`` calls, for ``layers.partition``."""
    called: set[str] = set()
    with observed(model, lambda name, *_: called.add(name)):
        forward(model)
    return called
