"""Personalisation masks: which parts of a model a client keeps for itself.

One mechanism serves all methods. A mask entry belongs to a tensor name and is True where the client keeps its
own value: a scalar entry () personalises the whole tensor, an entry of the tensor's shape single elements.
Names without an entry are shared. What is kept never leaves the client.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedlib.errors import InputError
from fedlib.federation.model_state import State

Masks = dict[str, Tensor]


def check(masks: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Raise InputError unless every entry is boolean, names a tensor and is a scalar or of its shape."""
    for name, mask in masks.items():
        if name not in state:
            raise InputError(f"mask for {name!r}, which is no tensor of the model")
        if mask.dtype != torch.bool or mask.shape not in (torch.Size([]), state[name].shape):
            raise InputError(
                f"mask of {name} is {mask.dtype} {tuple(mask.shape)}; "
                f"allowed: bool, of shape () or {tuple(state[name].shape)}"
            )


def shared_part(state: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> State:
    """Return what is sent: whole tensors, or the shared elements (k,) of element-masked ones, row-major."""
    sent: State = {}
    for name, tensor in state.items():
        mask = masks.get(name)
        if mask is None or (mask.dim() == 0 and not mask):
            sent[name] = tensor
        elif mask.shape == tensor.shape and mask.dim() > 0:
            sent[name] = tensor[~mask]
    return sent


def restore(sent: Mapping[str, Tensor], masks: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> State:
    """Undo ``shared_part`` on the receiving side; elements that were not sent are zero."""
    full: State = {}
    for name, tensor in like.items():
        if name not in sent:
            full[name] = torch.zeros_like(tensor)
        elif name in masks and masks[name].dim() > 0:
            full[name] = torch.zeros_like(tensor)
            full[name][~masks[name]] = sent[name]
        else:
            full[name] = sent[name]
    return full


def inject(
    shared: Mapping[str, Tensor], personal: Mapping[str, Tensor], masks: Mapping[str, Tensor]
) -> State:
    """Return the client's model: its own value where the mask is True, the shared value elsewhere.

    Values are selected, not computed, so they are equal bit for bit to the tensors that they come from.
    """
    return {
        name: torch.where(masks[name], personal[name], tensor) if name in masks else tensor
        for name, tensor in shared.items()
    }


def pack(masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the masks as they travel: eight bits a byte, scalars together in one entry (uint8 tensors).

    Scalar entries are packed in the order of their sorted names, which both sides know.
    """
    packed = {
        name: torch.from_numpy(np.packbits(mask.numpy().reshape(-1)))
        for name, mask in masks.items()
        if mask.dim() > 0
    }
    scalars = [bool(masks[name]) for name in sorted(masks) if masks[name].dim() == 0]
    if scalars:
        packed["layers"] = torch.from_numpy(np.packbits(np.array(scalars, dtype=bool)))
    return packed
