"""CCVR: calibrate the head on virtual features (Luo et al. 2021, "No fear of heterogeneity").

Vehicles send mean and covariance of each class; the server merges them exactly, draws features from one
Gaussian per class and retrains the linear head only. Backbone and stored head are unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.features import symmetric
from fedlib.features.moments import ClassMoments
from fedlib.methods.mpt.tracking import Native, Outcome, Round, State, Tracker, Vehicle

JITTER = 1e-6  # of the mean variance, added to each class covariance before it is sampled from


@dataclass(frozen=True)
class CCVR:
    """Settings of the calibration; the paper's depend on the data set, these are common re-implementation
    values.

    Attributes:
        samples: virtual features for each class.
        epochs: passes over them.
        batch_size: features in a step.
        lr: step size of SGD.
        momentum: momentum of SGD.
    """

    samples: int = 200
    epochs: int = 10
    batch_size: int = 64
    lr: float = 0.01
    momentum: float = 0.9


@dataclass(frozen=True)
class ClassGaussians:
    """Mean and unbiased covariance of each class.

    Attributes:
        count: n_c, int64 (C,).
        mean: mu_c, (C, d); zeros for a class without samples.
        covariance: Sigma_c, (C, d, d); zeros below two samples.
    """

    count: Tensor
    mean: Tensor
    covariance: Tensor


def class_gaussians(features: Tensor, labels: Tensor, num_classes: int) -> ClassGaussians:
    """Return what one vehicle knows: features (n, d), labels int64 (n,)."""
    z = features.double()
    count = torch.bincount(labels, minlength=num_classes)
    mean = torch.zeros(num_classes, z.shape[1], dtype=torch.float64)
    covariance = torch.zeros(num_classes, z.shape[1], z.shape[1], dtype=torch.float64)
    for label in torch.nonzero(count).flatten().tolist():
        own = z[labels == label]
        mean[label] = own.mean(dim=0)
        if len(own) > 1:
            centred = own - mean[label]
            covariance[label] = centred.T @ centred / (len(own) - 1)
    return ClassGaussians(count, mean, covariance)


def to_tensors(own: ClassGaussians) -> dict[str, Tensor]:
    """Return the vehicle's covariances as it sends them: ``covariance`` (classes held, d(d + 1)/2) float32."""
    held = torch.nonzero(own.count).flatten().tolist()
    packed = [symmetric.pack(own.covariance[label]) for label in held]
    size = own.mean.shape[1] * (own.mean.shape[1] + 1) // 2
    return {"covariance": torch.stack(packed).float() if packed else torch.empty(0, size)}


def merge(parts: Sequence[ClassGaussians]) -> ClassGaussians:
    """Return mean and unbiased covariance of each class over all vehicles, as if pooled (Luo et al., section 4).

    Raises:
        InputError: no parts.
    """
    if not parts:
        raise InputError("nothing to merge; allowed: at least one part")
    counts = torch.stack([part.count for part in parts])  # (K, C)
    total = counts.sum(dim=0)
    n = total.clamp(min=1).double()
    mean = sum(
        ((part.count.double() / n)[:, None] * part.mean for part in parts),
        torch.zeros_like(parts[0].mean),
    )
    # Sigma_c = sum_k (n_kc - 1)/(n_c - 1) Sigma_kc + sum_k n_kc/(n_c - 1) mu_kc mu_kc^T
    #           - n_c/(n_c - 1) mu_c mu_c^T;
    # the two last terms are summed as squares of mu_kc - mu_c, which is equal and does not cancel
    covariance = torch.zeros_like(parts[0].covariance)
    for part in parts:
        shift = part.mean - mean
        covariance += (part.count - 1).clamp(min=0).double()[:, None, None] * part.covariance
        covariance += part.count.double()[:, None, None] * shift[:, :, None] * shift[:, None, :]
    covariance /= (total - 1).clamp(min=1).double()[:, None, None]
    covariance[total < 2] = 0.0
    return ClassGaussians(total, mean, covariance)


def pooled_covariance(gaussians: ClassGaussians) -> Tensor:
    """Return the within-class covariance of all classes together, (d, d).

    Raises:
        InputError: no class has two samples.
    """
    weight = (gaussians.count - 1).clamp(min=0).double()
    if weight.sum() == 0:
        raise InputError("no class has two samples; allowed: at least one that does")
    # Sigma = sum_c (n_c - 1) Sigma_c / sum_c (n_c - 1)
    return (weight[:, None, None] * gaussians.covariance).sum(dim=0) / weight.sum()


def virtual_features(
    gaussians: ClassGaussians, samples: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw features of every class that has samples; one with a single sample takes the pooled covariance.

    Args:
        gaussians: of all vehicles.
        samples: for each class.
        generator: CPU generator.

    Returns:
        Features float32 (M samples, d) and labels int64 (M samples,).
    """
    drawn, labels = [], []
    d = gaussians.mean.shape[1]
    pooled = pooled_covariance(gaussians)
    for label in torch.nonzero(gaussians.count).flatten().tolist():
        sigma = gaussians.covariance[label] if gaussians.count[label] > 1 else pooled
        values, vectors = torch.linalg.eigh((sigma + sigma.T) / 2)
        jitter = JITTER * float(sigma.trace()) / d
        root = vectors * (values.clamp(min=0) + jitter).sqrt()  # (d, d), root root^T = Sigma_c + jitter I
        noise = torch.randn(samples, d, generator=generator, dtype=torch.float64)
        drawn.append(gaussians.mean[label] + noise @ root.T)
        labels.append(torch.full((samples,), label))
    return torch.cat(drawn).float(), torch.cat(labels)


def retrain(
    weight: Tensor, bias: Tensor, features: Tensor, labels: Tensor, options: CCVR, seed: int, round: int
) -> tuple[Tensor, Tensor, int]:
    """Train a linear head by SGD on cross-entropy, from the given one.

    Args:
        weight: (C, d), not changed.
        bias: (C,), not changed.
        features: (n, d).
        labels: int64 (n,).
        options: see :class:`CCVR`.
        seed: of the run.
        round: for the order of the batches.

    Returns:
        The new weight and bias, and the number of steps taken.
    """
    # One matrix [W b] and features with a constant 1: the same arithmetic in half the operations.
    head = torch.cat([weight, bias[:, None]], dim=1).float()
    inputs = torch.cat([features, torch.ones(len(features), 1)], dim=1)
    targets = functional.one_hot(labels, len(weight)).float()
    velocity = torch.zeros_like(head)
    steps = 0
    order = seeds.torch_generator(seed, "ccvr", "batches", round)
    for _ in range(options.epochs):
        for rows in torch.randperm(len(inputs), generator=order).split(options.batch_size):
            x = inputs[rows]
            # gradient of the mean cross-entropy: (softmax - onehot)^T x / B
            error = torch.softmax(x @ head.T, dim=1).sub_(targets[rows])
            velocity.mul_(options.momentum).addmm_(error.T, x, alpha=1 / len(rows))
            head.add_(velocity, alpha=-options.lr)
            steps += 1
    return head[:, :-1].clone(), head[:, -1].clone(), steps


class CCVRTracker(Tracker):
    """CCVR: the head retrained on virtual features; the trained model stays as it is."""

    name: ClassVar[str] = "ccvr"
    native: ClassVar[Native] = "head"
    compensates: ClassVar[str] = "no"
    answers_before: ClassVar[bool] = True

    def __init__(self, options: CCVR) -> None:
        self.options = options

    def uplink(self, vehicle: Vehicle, received: State, kept: State) -> State:
        """Return the covariance of each class that the vehicle holds."""
        own = class_gaussians(vehicle.features, vehicle.labels, vehicle.moments.num_classes)
        return to_tensors(own)

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return the calibrated head."""
        parts = [_gaussians(part, message) for part, message in zip(server.parts, sent, strict=True)]
        merged = merge(parts)
        draws = seeds.torch_generator(server.seed, "ccvr", "features", server.number)
        features, labels = virtual_features(merged, self.options.samples, draws)
        weight, bias, steps = retrain(
            *server.head, features, labels, self.options, server.seed, server.number
        )
        return Outcome(head=(weight, bias), steps=steps)

    before = follow

    def floats_up(self, classes: int, dim: int, samples: int) -> int:
        """Return C_k (d + 1) + C_k d(d + 1)/2."""
        return super().floats_up(classes, dim, samples) + classes * (dim * (dim + 1) // 2)

    def floats_down(self, classes: int, dim: int) -> int:
        """Return C (d + 1): the calibrated head."""
        return classes * (dim + 1)


def _gaussians(part: ClassMoments, message: State) -> ClassGaussians:
    """Return a vehicle's class Gaussians from its class statistics and its covariances."""
    covariance = torch.zeros(part.num_classes, part.dim, part.dim, dtype=torch.float64)
    for label, packed in zip(
        torch.nonzero(part.count).flatten().tolist(), message["covariance"], strict=True
    ):
        covariance[label] = symmetric.unpack(packed.double())
    return ClassGaussians(part.count, part.mean, covariance)
