"""The layers of a model: a partition of its parameters, so that each has exactly one mask bit.

Verhoog et al. 2026, section III: a layer l has p_l parameters, and sum_l p_l = P. The paper does not say what a
layer is. Here it is a module that owns parameters itself (convolution, linear map, normalisation, embedding).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import nn

from fedlib.errors import InputError


@dataclass(frozen=True)
class Layer:
    """One layer.

    Attributes:
        name: name of its first module; "" is the model itself.
        modules: names of the modules whose outputs are its activations; more than one where they share a
            parameter or one is never called on its own (``out_proj`` of ``nn.MultiheadAttention``); none for
            parameters that a container holds beside other layers.
        tensors: state names of its parameters and buffers.
        parameters: p_l, number of parameter values; a shared parameter counts once.
    """

    name: str
    modules: tuple[str, ...]
    tensors: tuple[str, ...]
    parameters: int


def partition(model: nn.Module, called: Iterable[str] | None = None) -> tuple[Layer, ...]:
    """Return the layers of ``model`` in ``named_modules`` order: every state entry is in exactly one.

    Args:
        model: the model.
        called: names of the modules that a forward pass calls. A module with parameters that is not among them is
            absorbed by its nearest ancestor layer if there is one. None treats all as called.

    Raises:
        InputError: a model without parameters.
    """
    owners = {
        name: module
        for name, module in model.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    }
    if not owners:
        raise InputError(
            f"{type(model).__name__} has no parameters; allowed: a model with at least one layer"
        )
    seen = set(owners) if called is None else set(called)
    leader = {name: name if name in seen else _ancestor(name, owners) or name for name in owners}
    for group in _tied(owners):
        first = leader[group[0]]
        merged = {leader[name] for name in group}
        leader = {name: first if head in merged else head for name, head in leader.items()}
    order = list(owners)
    layers = []
    for head in dict.fromkeys(leader[name] for name in order):
        members = [name for name in order if leader[name] == head]
        parameters = {p: None for name in members for p in owners[name].parameters(recurse=False)}
        tensors = tuple(f"{name}.{t}" if name else t for name in members for t in _own_tensors(owners[name]))
        # A container's output is that of its parts, so its own parameters have no activation to be scored by.
        giving = tuple(name for name in members if not _parts(name, owners) - set(members))
        layers.append(Layer(members[0], giving, tensors, sum(p.numel() for p in parameters)))
    # Buffers of modules without parameters (BatchNorm without affine maps) belong to no layer and are shared.
    return tuple(layers)


def blocks(model: nn.Module, prefixes: Sequence[str]) -> tuple[Layer, ...]:
    """Return one layer for each prefix: all parameters below it, scored by the output of the module of that name.

    Args:
        model: the model.
        prefixes: names of modules that together hold every parameter, and none of them twice.

    Raises:
        InputError: unknown module, overlapping blocks, or parameters in no block.
    """
    modules = dict(model.named_modules())
    held: dict[int, str] = {}  # by identity: two blocks may share a parameter under two names
    found = []
    for prefix in prefixes:
        if prefix not in modules:
            raise InputError(f"block {prefix!r} is no module of the model")
        inside = modules[prefix]
        tensors = {
            f"{prefix}.{name}" if prefix else name: tensor
            for name, tensor in inside.state_dict(keep_vars=True).items()
        }
        for name, tensor in tensors.items():
            if id(tensor) in held:
                raise InputError(f"blocks {held[id(tensor)]!r} and {prefix!r} overlap in {name}")
        held |= {id(tensor): prefix for tensor in tensors.values()}
        found.append(Layer(prefix, (prefix,), tuple(tensors), sum(p.numel() for p in inside.parameters())))
    missing = [name for name, parameter in model.named_parameters() if id(parameter) not in held]
    if missing:
        raise InputError(f"{missing[0]} is in no block; allowed: blocks that hold every parameter")
    return tuple(found)


def _parts(name: str, owners: dict[str, nn.Module]) -> set[str]:
    return {other for other in owners if other != name and other.startswith(f"{name}." if name else "")}


def _ancestor(name: str, owners: dict[str, nn.Module]) -> str | None:
    while name:
        name = name.rpartition(".")[0]
        if name in owners:
            return name
    return None


def _own_tensors(module: nn.Module) -> list[str]:
    persistent = set(module.state_dict(keep_vars=True))
    named = [name for name, _ in (*module.named_parameters(recurse=False, remove_duplicate=False),
                                  *module.named_buffers(recurse=False, remove_duplicate=False))]  # fmt: skip
    return [name for name in named if name in persistent]


def _tied(owners: dict[str, nn.Module]) -> list[list[str]]:
    """Return groups of modules that hold the same Parameter object."""
    holders: dict[int, list[str]] = {}
    for name, module in owners.items():
        for parameter in module.parameters(recurse=False):
            holders.setdefault(id(parameter), []).append(name)
    return [group for group in holders.values() if len(group) > 1]
