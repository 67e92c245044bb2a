"""Riemannian walk (Chaudhry et al., ECCV 2018): Fisher information and path integral together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import torch

from fedlib.errors import InputError, choose
from fedlib.federation.model_state import State
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual import importance
from fedlib.methods.continual.ewc import check_samples, check_share
from fedlib.methods.continual.quadratic import combine
from fedlib.methods.continual.si import PathIntegral, check_xi
from fedlib.methods.continual.strategy import Context, prefixed


@dataclass(kw_only=True)
class RWalk(PathIntegral):
    """Loss CE + lambda sum_i (F_i + s_i) (theta_i - theta*_i)^2.

    Attributes:
        strength: lambda.
        score: ``end`` measures F and s once, at the end of a task (FACIL); ``path`` as the paper has it: F is a
            running average of squared gradients, and s adds up, every ``interval`` steps,
            relu(omega_i / (1/2 F_i dtheta_i^2 + xi)) of those steps.
        a: F <- a F + (1 - a) F_t, at each task or, for ``path``, at each step; the paper has 0.9.
        xi: keeps the scores finite.
        interval: steps, for ``path``.
        fisher: how F is estimated for ``end``.
        samples: of a task for F; None for all.
        normalise: scale F and s to a maximum of 1 (paper).
    """

    label: ClassVar[str] = "RWalk"
    stores: ClassVar[str] = "parameters, Fisher information, path integral, scores"

    strength: float = 1.0
    score: Literal["end", "path"] = "end"
    a: float = 0.5
    xi: float = 0.1
    interval: int = 10
    fisher: Literal["expected", "empirical", "max_pred", "batch"] = "expected"
    samples: int | None = 1000
    normalise: bool = False

    fishers: State = field(init=False, repr=False)
    scores_: State = field(init=False, repr=False)
    _last: State = field(init=False, repr=False)
    _sum: State = field(init=False, repr=False)
    _steps: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("score", self.score, ("end", "path"))
        choose("fisher", self.fisher, importance.FISHERS)
        check_xi(self.xi)
        check_samples(self.samples)
        check_share(a=self.a)
        if self.interval < 1:
            raise InputError(f"interval is {self.interval!r}; allowed: at least 1")

    @classmethod
    def small(cls) -> Self:
        """Return the budget for small images: 200 samples for F."""
        return cls(samples=200)

    def start(self, context: Context) -> None:
        """Begin without scores."""
        super().start(context)
        self.fishers, self.scores_ = {}, {}

    def begin_task(self, data: ImageData) -> None:
        """Begin a new path."""
        super().begin_task(data)
        self._last, self._steps = self.first, 0
        self._sum = {name: torch.zeros_like(p) for name, p in self.first.items()}

    def after_step(self, old: State) -> None:
        """Add the step to the path and, for ``path``, to F and the scores."""
        super().after_step(old)
        if self.score == "end":
            return
        for name, g in self.gradient.items():
            self.fishers[name] = combine(self.fishers.get(name), (1 - self.a) * g.square(), self.a, 1.0)
        self._steps += 1
        if self._steps % self.interval == 0:
            self._close_interval()

    def _close_interval(self) -> None:
        now = {name: p.detach().clone() for name, p in self.parameters().items()}
        for name, path in self.path.items():
            if name in self.fishers:
                # s_i <- s_i + relu(omega_i / (1/2 F_i dtheta_i^2 + xi))
                change = (now[name] - self._last[name]).square()
                self._sum[name] += (path / (self.fishers[name] * change / 2 + self.xi)).relu()
        self._last = now
        self.path = {name: torch.zeros_like(path) for name, path in self.path.items()}

    def end_task(self, data: ImageData) -> None:
        """Measure F and the scores, and add them up to the importance."""
        if self.score == "end":
            chosen = importance.sample(data, self.samples, self.context.generator("fisher"))
            size = self.context.training.batch_size
            new = importance.fisher(
                self.net, self.parameters(), chosen, self.rows, self.targets, self.fisher, size
            )
            self.fishers = {
                name: combine(self.fishers.get(name), value, self.a, 1 - self.a)
                for name, value in new.items()
            }
            # s_i = relu(omega_i / (F_i dtheta_i^2 + xi))
            moved = self.moved()
            task = {
                name: (path / (self.fishers[name] * moved[name].square() + self.xi)).relu()
                for name, path in self.path.items()
            }
        else:
            self._close_interval()
            task = self._sum
        # s <- (s + s_t) / 2
        self.scores_ = {
            name: combine(self.scores_.get(name), value, 0.5, 0.5) for name, value in task.items()
        }
        first, second = (unit(x) if self.normalise else x for x in (self.fishers, self.scores_))
        self.omega = {name: first[name] + second[name] for name in second if name in first}
        super().end_task(data)

    def state_dict(self) -> State:
        """Return theta*, F, omega, s."""
        kept = {"fisher": self.fishers, "path": self.path, "scores": self.scores_, "anchor": self.anchor}
        return {name: x for prefix, state in kept.items() for name, x in prefixed(prefix, state).items()}


def unit(state: State) -> State:
    """Return the tensors divided by the largest value of all, so that it is 1; zeros stay."""
    largest = max((float(x.max()) for x in state.values()), default=0.0)
    return {name: x / largest for name, x in state.items()} if largest > 0 else state
