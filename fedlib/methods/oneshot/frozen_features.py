"""References on a frozen common encoder: nearest class mean, linear discriminant, FedPFT's mixtures.

Each client sends statistics of its features once; the server makes a linear head from them. The first two are
exact: the server gets what it would get from all features together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from sklearn.mixture import GaussianMixture
from torch import Tensor, nn
from torch.nn import functional

from fedlib import seeds
from fedlib.errors import InputError, choose
from fedlib.features.embed import embed
from fedlib.features.finite import all_finite
from fedlib.features.moments import ClassMoments
from fedlib.features.ncm import EuclideanNCM, MahalanobisNCM, prototypes, regularise
from fedlib.federation.ledger import SERVER, Ledger
from fedlib.federation.tasks import ImageData
from fedlib.methods.oneshot.base import Result, at_least, check, check_labels
from fedlib.models import Classifier, Embedder

Encoder = Classifier | Embedder


class Readout(nn.Module):
    """A frozen encoder and a linear head on its features: logits = W features(x) + b.

    Args:
        encoder: stays as it is, in evaluation mode.
        weight: W (C, d).
        bias: b (C,); minus infinity for a class that is never predicted.
    """

    def __init__(self, encoder: Encoder, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.encoder = encoder
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (B, C) of images (B, channels, s, s)."""
        return functional.linear(self.encoder.features(x), self.weight, self.bias)  # type: ignore[arg-type]


def client_features(encoder: Encoder, clients: Sequence[ImageData]) -> list[tuple[Tensor, Tensor]]:
    """Return features (N_k, d) float32 and labels (N_k,) int64 of each client, on the CPU.

    Head-level rows share them, so that images pass the encoder once.
    """
    out = []
    for data in clients:
        parts = [embed(encoder, data.batch(rows)[0]).cpu() for rows in torch.arange(len(data)).split(512)]
        features = torch.cat(parts) if parts else torch.empty(0, encoder.feature_dim)
        out.append((features, torch.from_numpy(data.labels)))
    return out


def _summed(
    features: Sequence[tuple[Tensor, Tensor]], num_classes: int, ledger: Ledger, *, scatter: bool
) -> ClassMoments:
    """Return the moments of all clients together, each having sent its own."""
    if not features or not sum(len(labels) for _, labels in features):
        raise InputError(f"{len(features)} clients have 0 samples together; allowed: at least one")
    parts = []
    for client, (z, labels) in enumerate(features):
        check_labels(labels.numpy(), num_classes, client)
        moments = ClassMoments(num_classes, z.shape[1], scatter=scatter)
        moments.update(z, labels)
        message = moments.to_tensors()
        ledger.send(client, SERVER, 1, "moments", message)
        parts.append(ClassMoments.from_tensors(message, num_classes))
    return ClassMoments.merge(parts)


def frozen_ncm(encoder: Encoder, features: Sequence[tuple[Tensor, Tensor]], num_classes: int) -> Result:
    """Return the nearest class mean of all clients' features; clients send counts and class means.

    Args:
        encoder: the common encoder.
        features: of :func:`client_features`.
        num_classes: C; a class that no client has is never predicted.

    Raises:
        InputError: no sample at all.
    """
    ledger = Ledger(most_uplinks=1)
    moments = _summed(features, num_classes, ledger, scatter=False)
    model = Readout(encoder, *EuclideanNCM(prototypes(moments)).as_linear_head())
    return Result("frozen_ncm", model.eval(), [], ledger, _shape(features, num_classes))


def frozen_lda(
    encoder: Encoder, features: Sequence[tuple[Tensor, Tensor]], num_classes: int, ridge: float = 1e-3
) -> Result:
    """Return Fisher's linear discriminant with the pooled covariance of all clients' features and class priors.

        log p(c | z) = z^T Sigma^-1 mu_c - mu_c^T Sigma^-1 mu_c / 2 + log(n_c / N) + constant

    Clients send counts, class means and d(d + 1)/2 values of scatter.

    Args:
        encoder: the common encoder.
        features: of :func:`client_features`.
        num_classes: C; a class that no client has is never predicted.
        ridge: relative ridge of the covariance; see :func:`fedlib.features.ncm.regularise`.

    Raises:
        InputError: no class has two samples, or a ridge that is negative.
    """
    ledger = Ledger(most_uplinks=1)
    moments = _summed(features, num_classes, ledger, scatter=True)
    covariance = regularise(moments.covariance(), ridge)
    weight, bias = MahalanobisNCM(prototypes(moments), covariance).as_linear_head()
    prior = moments.count.double() / moments.count.sum()
    bias = torch.where(moments.count > 0, bias + prior.log().float(), -torch.inf)
    model = Readout(encoder, weight, bias)
    return Result("frozen_lda", model.eval(), [], ledger, _shape(features, num_classes) | {"ridge": ridge})


@dataclass(frozen=True)
class FedPFT:
    """Settings of FedPFT (Beitollahi et al. 2024): mixtures of Gaussians of the features of each class.

    Attributes:
        components: of the mixture of a class; fewer where a class has fewer different samples.
        covariance: ``diag``, ``spherical`` or ``full``.
        head_epochs: passes over the synthetic features.
        head_lr: of AdamW.
        batch_size: synthetic features in a batch.
    """

    components: int = 10
    covariance: Literal["diag", "spherical", "full"] = "diag"
    head_epochs: int = 100
    head_lr: float = 1e-3
    batch_size: int = 128

    def __post_init__(self) -> None:
        at_least(self, {"components": 1, "head_epochs": 1, "batch_size": 1})
        check(self, head_lr=(self.head_lr > 0, "above 0"))
        choose("covariance", self.covariance, ("diag", "spherical", "full"))

    @classmethod
    def small(cls) -> FedPFT:
        """Return the budget for small images on a CPU."""
        return cls(components=3, head_epochs=20)


def mixture_message(z: Tensor, settings: FedPFT, seed: int) -> dict[str, Tensor]:
    """Fit the mixture of one class at one client and return what it sends, in float16.

    Args:
        z: features (n, d), n >= 1.
        settings: see :class:`FedPFT`.
        seed: of the fit.

    Returns:
        ``weights`` (M,), ``means`` (M, d), ``count`` () int32 and ``factors``: standard deviations (M,) or
        (M, d), or the lower triangles (M, d(d + 1)/2) of Cholesky factors. Factors instead of covariances keep
        the server's covariances positive definite after rounding.
    """
    points = z.double().numpy()
    different = len(np.unique(points, axis=0))
    if len(points) == 1:
        points = np.repeat(points, 2, axis=0)  # one sample: a mixture of spread zero plus sklearn's floor
    mixture = GaussianMixture(
        min(settings.components, different),
        covariance_type=settings.covariance,
        random_state=seed % 2**32,
        reg_covar=1e-5,
    ).fit(points)
    covariances = torch.from_numpy(mixture.covariances_)
    if settings.covariance == "full":
        rows, columns = torch.tril_indices(z.shape[1], z.shape[1])
        factors = torch.linalg.cholesky(covariances)[:, rows, columns]
    else:
        factors = covariances.sqrt()
    return {
        "weights": torch.from_numpy(mixture.weights_).half(),
        "means": torch.from_numpy(mixture.means_).half(),
        "factors": factors.half(),
        "count": torch.tensor(len(z), dtype=torch.int32),
    }


def sample_message(message: dict[str, Tensor], generator: torch.Generator) -> Tensor:
    """Return as many features (n, d) float32 as the client had, drawn from the mixture it sent."""
    count, dim = int(message["count"]), message["means"].shape[1]
    weights = message["weights"].double()
    which = torch.multinomial(weights / weights.sum(), count, replacement=True, generator=generator)
    noise = torch.randn(count, dim, generator=generator)
    factors, means = message["factors"].float(), message["means"].float()[which]
    if factors.shape[1:] == (dim * (dim + 1) // 2,) and dim > 1:
        lower = torch.zeros(len(factors), dim, dim)
        rows, columns = torch.tril_indices(dim, dim)
        lower[:, rows, columns] = factors
        return means + torch.einsum("nij,nj->ni", lower[which], noise)
    if factors.ndim == 1:
        factors = factors[:, None]
    return means + factors[which] * noise


def train_head(
    features: Tensor, labels: Tensor, num_classes: int, settings: FedPFT, seed: int
) -> tuple[nn.Linear, list[dict[str, float]]]:
    """Train a linear head on features (N, d) and labels (N,) with AdamW; return it and a row for each epoch."""
    with seeds.torch_global(seed, "fedpft head"):
        head = nn.Linear(features.shape[1], num_classes)
    optimizer = torch.optim.AdamW(head.parameters(), settings.head_lr, weight_decay=1e-4)
    history = []
    for epoch in range(settings.head_epochs):
        total = 0.0
        order = torch.randperm(len(labels), generator=seeds.torch_generator(seed, "fedpft batches", epoch))
        for rows in order.split(settings.batch_size):
            loss = functional.cross_entropy(head(features[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(rows)
        history.append({"epoch": float(epoch), "train_loss": total / len(labels)})
    return head, history


def fedpft(
    encoder: Encoder,
    features: Sequence[tuple[Tensor, Tensor]],
    num_classes: int,
    settings: FedPFT,
    seed: int,
) -> Result:
    """Return a linear head trained on features that the server draws from the clients' class mixtures.

    Args:
        encoder: the common encoder.
        features: of :func:`client_features`.
        num_classes: C.
        settings: see :class:`FedPFT`.
        seed: of the experiment.

    Raises:
        InputError: no sample at all, a label that is no class, or features that are not finite.
    """
    for client, (z, y) in enumerate(features):
        check_labels(y.numpy(), num_classes, client)
        if not all_finite(z):
            raise InputError(f"features of client {client} are NaN or infinite; allowed: finite values")
    ledger = Ledger(most_uplinks=1)
    drawn: list[Tensor] = []
    labels: list[Tensor] = []
    for client, (z, y) in enumerate(features):
        message: dict[str, Tensor] = {}
        for label in y.unique().tolist():
            part = mixture_message(z[y == label], settings, seeds.integer(seed, "fedpft fit", client, label))
            message |= {f"{label}/{name}": value for name, value in part.items()}
            random = seeds.torch_generator(seed, "fedpft draw", client, label)
            drawn.append(sample_message(part, random))
            labels.append(torch.full((len(drawn[-1]),), label))
        if message:
            ledger.send(client, SERVER, 1, "mixtures", message)
    if not drawn:
        raise InputError(f"{len(features)} clients have 0 samples together; allowed: at least one")
    head, history = train_head(torch.cat(drawn), torch.cat(labels), num_classes, settings, seed)
    model = Readout(encoder, head.weight.detach(), head.bias.detach())
    record = _shape(features, num_classes) | dataclasses.asdict(settings)
    return Result(f"fedpft_{settings.covariance}", model.eval(), history, ledger, record)


def _shape(features: Sequence[tuple[Tensor, Tensor]], num_classes: int) -> dict[str, Any]:
    return {"clients": len(features), "num_classes": num_classes, "dim": features[0][0].shape[1]}
