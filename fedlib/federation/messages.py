"""What crosses the network, and its size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from safetensors.torch import save
from torch import Tensor

from fedlib.federation import masks as personal
from fedlib.federation.model_state import State

KINDS = ("weights", "statistics", "masks", "metadata")


def serialized_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return the length in bytes of ``tensors`` serialised as safetensors (0 for none).

    The length depends on names, types and shapes only, so each such signature is serialised once.
    """
    if not tensors:
        return 0
    return _length(tuple((name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()))


@lru_cache(maxsize=512)  # element masks give a new shape in every round
def _length(signature: tuple[tuple[str, torch.dtype, torch.Size], ...]) -> int:
    return len(save({name: torch.zeros(shape, dtype=dtype) for name, dtype, shape in signature}))


@dataclass
class Broadcast:
    """Server to client: the global model and what the method adds (``statistics``)."""

    round: int
    weights: State
    statistics: State = field(default_factory=dict)

    def bytes(self) -> dict[str, int]:
        """Return the serialised size by kind."""
        return {
            "weights": serialized_bytes(self.weights),
            "statistics": serialized_bytes(self.statistics),
            "metadata": serialized_bytes({"round": torch.zeros((), dtype=torch.int64)}),
        }


@dataclass
class Update:
    """Client to server, and what stays at the client.

    Attributes:
        client: client id.
        num_samples: training samples that the update was computed from; its weight in the average.
        weights: the shared part of the trained model (see ``masks.shared_part``).
        masks: what the client keeps (see ``fedlib.federation.masks``).
        statistics: further tensors that the method sends.
        metrics: local numbers for the log; not counted as sent.
        memory: the client's own state after the round; it never leaves the client.
    """

    client: int
    num_samples: int
    weights: State
    masks: dict[str, Tensor] = field(default_factory=dict)
    statistics: State = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    memory: State = field(default_factory=dict)

    def bytes(self) -> dict[str, int]:
        """Return the serialised size of what is sent, by kind; ``memory`` and ``metrics`` are not sent."""
        return {
            "weights": serialized_bytes(self.weights),
            "statistics": serialized_bytes(self.statistics),
            "masks": serialized_bytes(personal.pack(self.masks)),
            "metadata": serialized_bytes(
                dict.fromkeys(("client", "samples"), torch.zeros((), dtype=torch.int64))
            ),
        }
