"""One round as vehicles and server see it, and what every method that is compared has to answer.

A method is a :class:`Tracker`. Its two halves are kept apart: ``uplink`` sees one vehicle's features and
returns the tensors that the vehicle sends; ``departure`` and ``follow`` see these tensors and the class
statistics, nothing else. All methods are run on one trajectory of backbones, so that a further method needs no
further training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedlib.errors import InputError
from fedlib.features.moments import ClassMoments
from fedlib.features.ncm import EuclideanNCM, MahalanobisNCM, prototypes, regularise

State = dict[str, Tensor]
Native = Literal["mahalanobis", "euclidean", "cosine", "diagonal", "head"]


@dataclass(frozen=True)
class Vehicle:
    """What one vehicle has in a round; only what a method's ``uplink`` returns leaves it.

    Attributes:
        id: of the vehicle.
        labels: int64 (n,).
        features: (n, d) float32, its samples under the model of this round.
        moments: its class counts and means.
        before: (n, d), the same samples under the model of the last round; None in the first.
        at_departure: (n, d), the same under the model of the departure; None before it.
    """

    id: int
    labels: Tensor
    features: Tensor
    moments: ClassMoments
    before: Tensor | None = None
    at_departure: Tensor | None = None

    def pairs(self, chain: bool = True) -> tuple[Tensor, Tensor]:
        """Return old and new features of the samples of remaining classes, (n, d) each.

        Args:
            chain: the old ones are of the last round; else of the departure.
        """
        keep = self.moments.pooled[self.labels]
        old = self.before if chain else self.at_departure
        new = self.features[keep]
        return (new if old is None else old[keep]), new


@dataclass(frozen=True)
class Round:
    """What the server knows in a round: the statistics of the vehicles present.

    Attributes:
        number: of the round, from 1.
        rare_class: class that becomes rare.
        parts: each vehicle's statistics, as read from its message.
        head: the trained head, weight (C, d) and bias (C,).
        rho: trace-scaled ridge of the readout.
        seed: of the run.
    """

    number: int
    rare_class: int
    parts: Sequence[ClassMoments]
    head: tuple[Tensor, Tensor]
    rho: float = 0.01
    seed: int = 0

    @cached_property
    def moments(self) -> ClassMoments:
        """All vehicles together."""
        return ClassMoments.merge(self.parts)

    @cached_property
    def means(self) -> Tensor:
        """Class means (C, d), NaN rows for absent classes."""
        return prototypes(self.moments)

    @cached_property
    def basis(self) -> Tensor:
        """P, (d, M): the means of the remaining classes that have samples, ascending."""
        keep = ~torch.isnan(self.means).any(dim=1)
        keep[self.rare_class] = False
        return self.means[keep].T

    @cached_property
    def covariance(self) -> Tensor:
        """Sigma, (d, d), unregularised."""
        return self.moments.covariance()

    @cached_property
    def regularised(self) -> Tensor:
        """Sigma + rho (tr Sigma / d) I, (d, d)."""
        return regularise(self.covariance, self.rho)

    @property
    def count(self) -> int:
        """n: number of rare samples."""
        return int(self.moments.count[self.rare_class])

    @property
    def rare_mean(self) -> Tensor:
        """m, (d,): mean of the rare samples.

        Raises:
            InputError: there are none.
        """
        if self.count == 0:
            raise InputError(f"round {self.number} has no sample of class {self.rare_class}")
        return self.moments.mean[self.rare_class]

    def with_prototype(self, prototype: Tensor) -> Tensor:
        """Return the class means (C, d) with the rare one replaced."""
        means = self.means.clone()
        means[self.rare_class] = prototype
        return means


@dataclass(frozen=True)
class Outcome:
    """What a method makes of a round.

    Attributes:
        prototype: of the rare class, (d,); None for a method that has none, or no longer.
        means: prototypes of all classes, (C, d), where the method does not use the class means for the others.
        head: weight (C, d) and bias (C,), for a method that predicts with a head.
        details: numbers for the log.
        vectors: parts of the prototype, (d,) each, for the error analysis.
        steps: training steps that the server took.
        variances: of each feature within classes, (d,), for the ``diagonal`` readout.
    """

    prototype: Tensor | None = None
    means: Tensor | None = None
    head: tuple[Tensor, Tensor] | None = None
    details: Mapping[str, float] = field(default_factory=dict)
    vectors: Mapping[str, Tensor] = field(default_factory=dict)
    steps: int = 0
    variances: Tensor | None = None


class Tracker:
    """A method on a trajectory. One object follows one run: it is the server's memory of the method.

    Class attributes:
        name: of the method.
        native: the readout that its authors use.
        embeds: whether vehicles embed their samples anew in each round.
        sends_means: whether they send class counts and means.
        sends_scatter: whether they send the pooled scatter too.
        old_model: whether a vehicle has to keep the model of an earlier round.
        compensates: whether it follows drift after the departure: ``yes``, ``no``, or in words.
        aggregates: whether it is built from statistics that add up over vehicles.
        answers_before: whether vehicles answer (``uplink``) in rounds before the departure too.
    """

    name: ClassVar[str]
    native: ClassVar[Native] = "mahalanobis"
    embeds: ClassVar[bool] = True
    sends_means: ClassVar[bool] = True
    sends_scatter: ClassVar[bool] = False
    old_model: ClassVar[bool] = False
    compensates: ClassVar[str] = "yes"
    aggregates: bool = True
    answers_before: ClassVar[bool] = False

    def keep(self, vehicle: Vehicle) -> State:
        """Return what a vehicle stores at the departure for later rounds; it never leaves the vehicle."""
        return {}

    def downlink(self, server: Round) -> State:
        """Return what the server sends to every vehicle, beside model and readout, before they answer."""
        return {}

    def uplink(self, vehicle: Vehicle, received: State, kept: State) -> State:
        """Return what a vehicle sends beside its model and its class statistics."""
        return {}

    def departure(self, everyone: Round, staying: Round, sent: Sequence[State]) -> None:
        """Store what the method needs at the end of round t_0.

        Args:
            everyone: statistics of all vehicles.
            staying: of those that stay; the rare class is not in the scatter.
            sent: ``uplink`` of those that stay.
        """

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return the method's readout in a round after the departure; ``sent`` is in the order of the parts."""
        raise NotImplementedError

    def before(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return the readout in a round before the departure: the class means of all vehicles."""
        return Outcome(prototype=server.means[server.rare_class])

    # --- what it costs -------------------------------------------------------------------------------------

    def message(self, vehicle: Vehicle, own: State) -> State:
        """Return all that a vehicle sends beside its model: class statistics and ``own`` of ``uplink``."""
        if not self.sends_means:
            return dict(own)
        tensors = vehicle.moments.to_tensors()
        if not self.sends_scatter:
            tensors.pop("scatter", None)
        return tensors | {f"own/{name}": tensor for name, tensor in own.items()}

    def floats_up(self, classes: int, dim: int, samples: int) -> int:
        """Return the method page's count of floats that a vehicle sends beside its model (section 12).

        Args:
            classes: C_k, classes that the vehicle holds.
            dim: d.
            samples: n_k, its samples of the remaining classes.
        """
        triangle = dim * (dim + 1) // 2
        return (classes * (dim + 1) if self.sends_means else 0) + (triangle if self.sends_scatter else 0)

    def floats_down(self, classes: int, dim: int) -> int:
        """Return the method page's count of floats that a vehicle receives beside the model (section 12).

        C d are prototypes, C (d + 1) the linear head that the Mahalanobis readout is.
        """
        if not self.sends_means:
            return 0
        return classes * (dim + (self.native == "mahalanobis"))


class CosineNCM(EuclideanNCM):
    """Nearest mean among directions: features and prototypes at length one (iCaRL's nearest mean of exemplars).

    Args:
        class_means: (C, d); a row of NaN for a class that is never predicted.
    """

    def __init__(self, class_means: Tensor) -> None:
        super().__init__(class_means / class_means.norm(dim=1, keepdim=True))

    def scores(self, z: Tensor) -> Tensor:
        """Return scores, float32 (B, C)."""
        return super().scores(torch.nn.functional.normalize(z.float(), dim=1))


def readout(kind: Native, outcome: Outcome, server: Round, features: Tensor) -> Tensor:
    """Return the predicted classes (B,) of features (B, d).

    Args:
        kind: ``mahalanobis`` and ``euclidean`` put the method's rare prototype among the class means; ``cosine``
            uses the method's own means of all classes where it has them; ``diagonal`` scales each feature by
            the variance that the method knows; ``head`` is its head.
        outcome: of the method.
        server: the round.
        features: under the model of the round.
    """
    if kind == "head":
        weight, bias = outcome.head or server.head
        return torch.nn.functional.linear(features.float(), weight, bias).argmax(dim=1)
    gone = torch.full((server.moments.dim,), torch.nan, dtype=torch.float64)
    means = server.with_prototype(gone if outcome.prototype is None else outcome.prototype)
    if kind == "mahalanobis":
        return MahalanobisNCM(means, server.regularised).predict(features)
    if kind == "diagonal":
        if outcome.variances is None:
            raise InputError("readout is 'diagonal'; allowed for methods that send the features' variances")
        return MahalanobisNCM(means, regularise(outcome.variances.diag(), server.rho)).predict(features)
    if kind == "euclidean":
        return EuclideanNCM(means).predict(features)
    return CosineNCM(means if outcome.means is None else outcome.means).predict(features)
