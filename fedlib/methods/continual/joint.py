"""Joint training: cross-entropy on the samples of all tasks so far. The upper bound."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch

from fedlib.errors import choose
from fedlib.federation.model_state import State, model_state
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual.strategy import Context, Strategy, concatenated


@dataclass(kw_only=True)
class Joint(Strategy):
    """Keeps all samples.

    Attributes:
        weights: at a new task, ``continue`` from the present weights or ``restart`` from the initial ones.
    """

    label: ClassVar[str] = "Joint"
    stores: ClassVar[str] = "all samples"
    all_rows: ClassVar[bool] = True

    weights: Literal["continue", "restart"] = "continue"

    past: list[ImageData] = field(init=False, repr=False)
    checked: list[ImageData] = field(init=False, repr=False)
    initial: State = field(init=False, repr=False)
    rows_at_first: list[torch.Tensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        choose("weights", self.weights, ("continue", "restart"))

    def start(self, context: Context) -> None:
        """Begin with no samples."""
        super().start(context)
        self.past, self.checked, self.rows_at_first = [], [], []
        self.initial = model_state(self.net.encoder)

    def begin_task(self, data: ImageData) -> None:
        """Go back to the initial weights if wanted."""
        head = self.net.head
        self.rows_at_first.append(head.weight.detach()[self.old :].clone())
        if self.weights == "restart":
            self.net.encoder.load_state_dict(self.initial)
            with torch.no_grad():
                head.weight.copy_(torch.cat(self.rows_at_first))
                head.bias.zero_()

    def training_data(self, data: ImageData) -> ImageData:
        """Return the samples of all tasks."""
        return concatenated([*self.past, data]) if self.past else data

    def learn(self, data: ImageData, validation: ImageData | None) -> list[dict[str, float]]:
        """Train; the validation samples of all tasks decide on the step size."""
        self.checked += [] if validation is None else [validation]
        return super().learn(data, concatenated(self.checked) if self.checked else None)

    def end_task(self, data: ImageData) -> None:
        """Keep the samples."""
        self.past.append(data)

    def state_dict(self) -> State:
        """Return all images and labels."""
        state: State = {}
        for t, part in enumerate([*self.past, *self.checked]):
            state[f"images/{t}"] = torch.from_numpy(part.images)
            state[f"labels/{t}"] = torch.from_numpy(part.labels)
        return state
