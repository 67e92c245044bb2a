"""A memory of samples, chosen by herding (Rebuffi et al., CVPR 2017)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from fedlib.errors import InputError
from fedlib.federation.model_state import State
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual.lwf import Distilled
from fedlib.methods.continual.strategy import Context, Net, concatenated, embedded
from fedlib.methods.mpt.baselines.icarl import herding


class Memory:
    """Up to m samples of each class, in the order of herding, so that a smaller memory is a prefix.

    Attributes:
        classes: samples by class.
    """

    def __init__(self) -> None:
        self.classes: dict[int, ImageData] = {}

    def reduce(self, m: int) -> None:
        """Keep the first m of each class."""
        self.classes = {c: data.subset(np.arange(min(m, len(data)))) for c, data in self.classes.items()}

    def add(self, net: Net, data: ImageData, m: int) -> None:
        """Choose m samples of each class of ``data`` by the features of ``net``."""
        z = embedded(net, data).cpu()
        for c in np.unique(data.labels):
            rows = np.flatnonzero(data.labels == c)
            self.classes[int(c)] = data.subset(rows[herding(z[rows], m).numpy()])

    def data(self) -> ImageData:
        """Return all samples, at least one class of them."""
        return concatenated(list(self.classes.values()))


@dataclass(kw_only=True)
class Rehearsal(Distilled):
    """Keeps exemplars and trains on them together with the new samples.

    Attributes:
        exemplars: of all classes together; each seen class has floor(exemplars / seen) of them.
    """

    stores = "exemplars, network of the last task"
    category = "replay"
    all_rows = True

    exemplars: int = 200

    memory: Memory = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.exemplars < self.fewest():
            raise InputError(f"exemplars is {self.exemplars!r}; allowed: at least {self.fewest()}")

    def fewest(self) -> int:
        """Return how many exemplars the method needs at least."""
        return 0

    def start(self, context: Context) -> None:
        """Begin without exemplars.

        Raises:
            InputError: too few exemplars for one of each class.
        """
        super().start(context)
        self.memory = Memory()
        classes = sum(map(len, context.tasks))
        if 0 < self.exemplars < classes:
            raise InputError(
                f"exemplars is {self.exemplars!r}; allowed: at least {classes}, one for each class"
            )

    @property
    def for_each(self) -> int:
        """Exemplars of a class, m = floor(exemplars / seen)."""
        return self.exemplars // self.seen

    def training_data(self, data: ImageData) -> ImageData:
        """Return new samples and exemplars."""
        return concatenated([data, self.memory.data()]) if self.memory.classes else data

    def end_task(self, data: ImageData) -> None:
        """Choose exemplars, and make the present network the teacher."""
        if self.exemplars:
            self.memory.reduce(self.for_each)
            self.memory.add(self.net, data, self.for_each)
        super().end_task(data)

    def state_dict(self) -> State:
        """Return exemplars and teacher."""
        state = super().state_dict()
        for c, data in self.memory.classes.items():
            state[f"images/{c}"] = torch.from_numpy(data.images)
            state[f"labels/{c}"] = torch.from_numpy(data.labels)
        return state
