"""Elastic weight consolidation (Kirkpatrick et al., PNAS 2017): the Fisher information weighs the pull."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from fedlib.errors import InputError, choose
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual import importance
from fedlib.methods.continual.quadratic import Quadratic, combine
from fedlib.methods.continual.strategy import non_negative


@dataclass(kw_only=True)
class EWC(Quadratic):
    """Loss CE + (lambda/2) sum_i F_i (theta_i - theta*_i)^2.

    Attributes:
        strength: lambda.
        fisher: how F is estimated; see :func:`fedlib.methods.continual.importance.fisher`.
        samples: of a task for F; None for all.
        merge: ``average`` F <- a F + (1 - a) F_t (FACIL), or ``online`` F <- gamma F + F_t (online EWC); from the
            second task on, F = F_1 after the first.
        a: of ``average``.
        gamma: of ``online``.
    """

    label: ClassVar[str] = "EWC"
    stores: ClassVar[str] = "parameters, Fisher information"

    strength: float = 5000.0
    fisher: Literal["expected", "empirical", "max_pred", "batch"] = "expected"
    samples: int | None = 1000
    merge: Literal["average", "online"] = "average"
    a: float = 0.5
    gamma: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("fisher", self.fisher, importance.FISHERS)
        choose("merge", self.merge, ("average", "online"))
        check_samples(self.samples)
        check_share(a=self.a)
        non_negative(gamma=self.gamma)

    @classmethod
    def small(cls) -> Self:
        """Return the budget for small images: 200 samples for F, and a smaller lambda.

        The suite's small budget has 50 times the step size; lambda is 50 times smaller, because steps diverge
        where lr lambda F > 2.
        """
        return cls(samples=200, strength=100.0)

    def end_task(self, data: ImageData) -> None:
        """Estimate F of the present task and merge it."""
        chosen = importance.sample(data, self.samples, self.context.generator("fisher"))
        new = importance.fisher(
            self.net,
            self.parameters(),
            chosen,
            self.rows,
            self.targets,
            self.fisher,
            self.context.training.batch_size,
        )
        keep, add = (self.a, 1 - self.a) if self.merge == "average" else (self.gamma, 1.0)
        self.omega = {name: combine(self.omega.get(name), value, keep, add) for name, value in new.items()}
        super().end_task(data)


def check_samples(samples: int | None) -> None:
    """Refuse a number of samples that is neither None nor at least one.

    Raises:
        InputError: naming it.
    """
    if samples is not None and samples < 1:
        raise InputError(f"samples is {samples!r}; allowed: at least 1, or None for all")


def check_share(**values: float) -> None:
    """Refuse values outside 0 to 1.

    Raises:
        InputError: naming the first of them.
    """
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise InputError(f"{name} is {value!r}; allowed: 0 to 1")
