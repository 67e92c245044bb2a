"""Model states by name, and a model whose parameters are views of one vector.

A state maps names to tensors: parameters and buffers, row-major, on the CPU. Nothing in the federation goes by
position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from fedlib.errors import InputError

State = dict[str, Tensor]


def model_state(model: nn.Module) -> State:
    """Return copies of all parameters and persistent buffers, row-major, on the CPU."""
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in model.state_dict().items()
    }


class FlatModel:
    """A model whose trainable parameters, and their gradients, are views of one vector each.

    One vector makes the optimizer step, the gradient corrections of the methods and the finiteness check a few
    operations instead of a few per tensor.

    Attributes:
        module: the model itself, in ``channels_last`` memory format.
        values: (P,) float32, all trainable parameters in ``named_parameters`` order.
        grad: (P,) float32, their gradients; backward passes add to it.
    """

    def __init__(self, module: nn.Module, device: str = "cpu") -> None:
        self.module = module.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        trainable = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        total = sum(p.numel() for p in trainable.values())
        self.values = torch.empty(total, device=device)
        self.grad = torch.zeros(total, device=device)
        self._slices: dict[str, slice] = {}
        offset = 0
        for name, parameter in trainable.items():
            self._slices[name] = slice(offset, offset + parameter.numel())
            view = _view(self.values[self._slices[name]], parameter)
            view.copy_(parameter.detach())
            parameter.data = view
            parameter.grad = _view(self.grad[self._slices[name]], parameter)
            offset += parameter.numel()
        self._tensors: dict[str, Tensor] = dict(self.module.state_dict(keep_vars=True))

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy ``state`` into the model.

        Raises:
            InputError: if the names or shapes are not those of the model.
        """
        check_same_model(state, self._tensors)
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                tensor.copy_(state[name])

    def state(self) -> State:
        """Return copies of all parameters and buffers."""
        return {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in self._tensors.items()
        }

    def view(self, vector: Tensor, name: str) -> Tensor:
        """Return the part of ``vector`` (P,) that belongs to the trainable parameter ``name``, in its shape."""
        return _view(vector[self._slices[name]], self._tensors[name])

    def vector_of(self, state: Mapping[str, Tensor]) -> Tensor:
        """Return the trainable parameters of ``state`` as a new vector (P,) in the order of ``values``."""
        vector = torch.empty_like(self.values)
        for name in self._slices:
            self.view(vector, name).copy_(state[name])
        return vector

    def named(self, vector: Tensor) -> State:
        """Return copies of the parts of ``vector`` (P,) by parameter name, row-major, on the CPU."""
        return {
            name: self.view(vector, name).detach().cpu().clone(memory_format=torch.contiguous_format)
            for name in self._slices
        }

    def trainable(self) -> Iterator[str]:
        """Yield the names of the trainable parameters in vector order."""
        yield from self._slices


def check_same_model(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse a state that has not the names and shapes of ``expected``.

    Raises:
        InputError: naming what differs.
    """
    if state.keys() != expected.keys():
        missing = sorted(expected.keys() - state.keys())[:3]
        extra = sorted(state.keys() - expected.keys())[:3]
        raise InputError(
            f"state of another model: missing {missing or 'nothing'}, unexpected {extra or 'nothing'}"
        )
    for name, tensor in expected.items():
        if tensor.shape != state[name].shape:
            raise InputError(
                f"state of another model: {name} has shape {tuple(state[name].shape)}, "
                f"this model needs {tuple(tensor.shape)}"
            )


def _view(flat: Tensor, like: Tensor) -> Tensor:
    """View ``flat`` (n,) in the shape of ``like``; 4-D tensors get channels_last strides."""
    if like.dim() == 4:
        out, channels, height, width = like.shape
        return flat.view(out, height, width, channels).permute(0, 3, 1, 2)
    return flat.view(like.shape)
