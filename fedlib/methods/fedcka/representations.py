"""What two models say about the same inputs, layer by layer, as matrices whose rows are the same items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn

from fedlib.methods.fedcka.activations import recording, to_rows

AT_ONCE = 2**28  # bytes of activations that are held at a time, unless one input alone has more

Calls = Mapping[str, Sequence[Tensor]]
# by module name both representations (B, n, p) float32 of B inputs: n places, p channels
Pairs = dict[str, tuple[Tensor, Tensor]]


def representations(
    first: nn.Module,
    second: nn.Module,
    names: Set[str],
    inputs: Sequence[Any],
    forward: Callable[[nn.Module, Any], Any],
    join: Callable[[list[Any]], Any] | None = None,
) -> Iterator[Pairs]:
    """Yield what both models say about all inputs, in their order, several inputs at a time.

    A module that is called more than once gives the rows of all its calls. A module may be called for items that a
    model chooses itself; calls whose shapes differ between the models are left out.

    Args:
        first: a model.
        second: another one of the same architecture.
        names: names of modules.
        inputs: inputs of one sample each, in the form that ``forward`` takes.
        forward: runs a model on one input, or on what ``join`` makes.
        join: makes one input of several, with the samples along the first axis of what modules give out. Where the
            shapes show that they are not, inputs pass one by one, as without it.
    """
    modules = dict(first.named_modules())
    with recording(first, names, None) as x, recording(second, names, None) as y:

        def run(one: Any) -> None:
            x.clear()
            y.clear()
            forward(first, one)
            forward(second, one)

        def single(one: Any) -> Pairs:
            run(one)
            return _pairs(modules, *({n: [t[None] for t in calls] for n, calls in s.items()} for s in (x, y)))

        yield single(inputs[0])  # alone: it shows what one input gives
        alone = [{name: [t.shape for t in calls] for name, calls in side.items()} for side in (x, y)]
        held = sum(t.nbytes for side in (x, y) for calls in side.values() for t in calls)
        size = 1 if join is None else max(1, AT_ONCE // max(held, 1))
        for start in range(1, len(inputs), size):
            part = list(inputs[start : start + size])
            if join is not None and len(part) > 1:
                run(join(part))
                one, other = (_split(side, shapes, len(part)) for side, shapes in zip((x, y), alone))
                if one is not None and other is not None:
                    yield _pairs(modules, one, other)
                    continue
            yield from map(single, part)


def _split(
    calls: Calls, alone: Mapping[str, Sequence[torch.Size]], count: int
) -> dict[str, list[Tensor]] | None:
    """Return outputs (count, ...) by input; None where they do not have ``count`` times the shape of one input."""
    if calls.keys() != alone.keys():
        return None
    found: dict[str, list[Tensor]] = {name: [] for name in calls}
    for name, outputs in calls.items():
        if len(outputs) != len(alone[name]):
            return None
        for output, shape in zip(outputs, alone[name]):
            if output.shape == shape:  # the same for all inputs, such as an encoding of places
                found[name].append(output.expand(count, *shape))
            elif output.shape == (count * shape[0], *shape[1:]):
                found[name].append(output.unflatten(0, (count, shape[0])))
            else:
                return None
    return found


def _pairs(modules: Mapping[str, nn.Module], one: Calls, other: Calls) -> Pairs:
    found: Pairs = {}
    for name in one:
        both = [(a, b) for a, b in zip(one[name], other.get(name, ()), strict=False) if a.shape == b.shape]
        sides = [[_rows(modules[name], call) for call in side] for side in zip(*both)]
        if both and len({rows.shape[2] for rows in sides[0]}) == 1:
            x, y = (rows[0] if len(rows) == 1 else torch.cat(rows, dim=1) for rows in sides)
            found[name] = (x, y)
    return found


def _rows(module: nn.Module, outputs: Tensor) -> Tensor:
    """Return outputs (B, ...) of B inputs as (B, n, p)."""
    if outputs.dim() < 3:
        return outputs[:, None].flatten(2)
    return to_rows(module, outputs.flatten(0, 1), "positions").unflatten(0, (len(outputs), -1))
