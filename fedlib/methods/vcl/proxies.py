"""Variational Proxy-NCA: class proxies that are Gaussians with a full covariance (VCL-FPFT, section 3.2).

    q_c(mu) = N(m_c, L_c L_c^T),   L = strictly lower triangle of A + diag(softplus(a) + 1e-4)

The paper's display equations are lost in the text that we have; (3.1) to (3.4) are our reconstruction. Letters:
C classes, d feature length, B batch, S Monte Carlo draws. Proxy-NCA: Movshovitz-Attias et al. 2017; variational
proxies: Kim et al. 2022.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib.errors import InputError, choose
from fedlib.features.gaussian import SMALLEST_NORM, pack_tril

FLOOR = 1e-4  # least diagonal value of L
KlScale = Literal["1/N", "1/num_batches", "1"]


class VariationalProxies(nn.Module):
    """The Gaussians q_c of C classes, as trainable parameters.

    Args:
        mean: (C, d), initial m.
        tril: (C, d, d), initial L.
        train_mean: False keeps m as it is and trains L alone.

    Raises:
        InputError: shapes that do not fit, or a diagonal of L that is not above 1e-4.
    """

    def __init__(self, mean: Tensor, tril: Tensor, *, train_mean: bool = True) -> None:
        super().__init__()
        if mean.dim() != 2 or tril.shape != (*mean.shape, mean.shape[1]) or not len(mean):
            raise InputError(
                f"mean has shape {tuple(mean.shape)} and tril {tuple(tril.shape)}; allowed: (C, d), (C, d, d)"
            )
        diagonal = tril.diagonal(dim1=-2, dim2=-1)
        if not (diagonal > FLOOR).all():
            raise InputError(
                f"initial scale of the proxies is {float(diagonal.min()):g}; allowed: above {FLOOR:g}"
            )
        self.mean = nn.Parameter(mean.clone(), requires_grad=train_mean)
        self.lower = nn.Parameter(tril.tril(-1))
        self.raw = nn.Parameter(torch.log(torch.expm1(diagonal - FLOOR)))  # softplus^-1

    @classmethod
    def initial(
        cls,
        num_classes: int,
        dim: int,
        scale: float,
        generator: torch.Generator,
        *,
        mean: Tensor | None = None,
        train_mean: bool = True,
    ) -> VariationalProxies:
        """Return proxies with L = ``scale`` I and m as given (C, d), by default U(-1/sqrt(d), 1/sqrt(d))."""
        if mean is None:
            mean = (2 * torch.rand(num_classes, dim, generator=generator) - 1) / math.sqrt(dim)
        return cls(mean, scale * torch.eye(dim).expand(num_classes, dim, dim), train_mean=train_mean)

    def scale_tril(self) -> Tensor:
        """Return L, (C, d, d), lower triangular with a diagonal above 1e-4."""
        tril = self.lower.tril(-1)
        tril.diagonal(dim1=-2, dim2=-1).copy_(functional.softplus(self.raw) + FLOOR)
        return tril

    def sample(self, samples: int, generator: torch.Generator, tril: Tensor | None = None) -> Tensor:
        """Return S draws of all proxies, mu = m + L eps, (S, C, d); gradients reach m and L.

        Args:
            samples: S.
            generator: on the CPU.
            tril: L if it is at hand.
        """
        tril = self.scale_tril() if tril is None else tril
        return draw_proxies(self.mean, tril, samples, generator)

    def kl(self, prior_scale: float, tril: Tensor | None = None) -> Tensor:
        """Return sum_c KL(q_c || N(0, prior_scale^2 I)), ()."""
        return gaussian_kl(self.mean, self.scale_tril() if tril is None else tril, prior_scale).sum()

    def export(self, index: int) -> tuple[Tensor, Tensor]:
        """Return m_c (d,) and the packed L_c (d(d + 1)/2,) of the class at ``index``, detached."""
        return self.mean[index].detach().clone(), pack_tril(self.scale_tril()[index].detach())


def draw_proxies(mean: Tensor, tril: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """Return mu^(s)_c = m_c + L_c eps, (S, C, d), from m (C, d) and L (C, d, d)."""
    eps = torch.randn(samples, *mean.shape, generator=generator, dtype=mean.dtype).to(mean.device)
    return mean + torch.einsum("cij,scj->sci", tril, eps)


def gaussian_kl(mean: Tensor, tril: Tensor, prior_scale: float) -> Tensor:
    """Return KL(N(m, L L^T) || N(0, sigma0^2 I)) of each class, (C,); least (0) at m = 0, L = sigma0 I.

    Args:
        mean: m, (C, d).
        tril: L, (C, d, d), lower triangular.
        prior_scale: sigma0 > 0.
    """
    d = mean.shape[-1]
    # (3.4)  KL = 1/2 [ (|L|_F^2 + |m|^2) / sigma0^2 - d + 2 d log sigma0 ] - sum_i log L_ii
    energy = (tril.square().sum((-2, -1)) + mean.square().sum(-1)) / prior_scale**2
    log_diagonal = tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return 0.5 * (energy - d + 2 * d * math.log(prior_scale)) - log_diagonal


def proxy_nca_nll(
    features: Tensor, proxies: Tensor, labels: Tensor, tau: float, exclude_positive: bool = False
) -> Tensor:
    """Return the mean over samples and draws of -log p(y | z, mu), ().

    Args:
        features: z, (B, d), of length 1.
        proxies: mu, (S, C, d), of any length.
        labels: (B,) int64, index of the class among the C.
        tau: temperature > 0.
        exclude_positive: leave the sample's own class out of the sum, as in the original Proxy-NCA; the result
            is then no likelihood and may be negative.

    Raises:
        InputError: ``exclude_positive`` with one class, for which the sum is empty.
    """
    samples, classes, d = proxies.shape
    directions = functional.normalize(proxies, dim=-1, eps=SMALLEST_NORM)
    # (3.1)  log p(y = c | z, mu) = s(z, mu_c) / tau - log sum_j exp(s(z, mu_j) / tau),   s(z, mu) = z^T mu / |mu|
    logits = (features @ directions.reshape(-1, d).T / tau).view(-1, classes)  # (B * S, C)
    target = labels.repeat_interleave(samples)
    if not exclude_positive:
        return functional.cross_entropy(logits, target)
    if classes < 2:
        raise InputError("exclude_positive is True with 1 class; allowed: two classes or more")
    own = logits.gather(1, target[:, None])
    others = logits.scatter(1, target[:, None], -torch.inf).logsumexp(1)
    return (others - own[:, 0]).mean()


def kl_factor(scale: KlScale, samples: int, batch_size: int) -> float:
    """Return the factor of the KL in (3.3) for a client with ``samples`` training samples.

    ``1/N`` makes the loss the negative ELBO for each sample. The two others are stronger by the batch size or by
    N, and q_c collapses to the prior.

    Raises:
        InputError: unknown scale, or no sample.
    """
    choose("kl_scale", scale, get_args(KlScale))
    if samples < 1 or batch_size < 1:
        raise InputError(f"samples are {samples}, batch_size is {batch_size}; allowed: at least 1 each")
    return {"1/N": 1 / samples, "1/num_batches": 1 / -(-samples // batch_size), "1": 1.0}[scale]


def variational_loss(
    features: Tensor,
    labels: Tensor,
    proxies: VariationalProxies,
    generator: torch.Generator,
    *,
    samples: int,
    tau: float,
    kl_weight: float,
    prior_scale: float,
    exclude_positive: bool = False,
    others: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return the minibatch loss (3.3), ().

    The loss is minus the evidence lower bound (3.2), sum_i E_q[log p(y_i | z_i, mu)] - sum_c KL(q_c || p_0), for
    each sample.

    Args:
        features: (B, d), of length 1.
        labels: (B,) int64, index among the proxies, after those of ``others`` if there are any.
        proxies: q_c of the classes that are trained.
        generator: of the draws, on the CPU.
        samples: S.
        tau: temperature.
        kl_weight: factor of the KL, w_KL / N.
        prior_scale: sigma0.
        exclude_positive: see :func:`proxy_nca_nll`.
        others: m (C', d) and L (C', d, d) of classes that take part in the sum but are not trained.
    """
    tril = proxies.scale_tril()
    mu = proxies.sample(samples, generator, tril)
    if others is not None:
        mu = torch.cat([draw_proxies(*others, samples, generator), mu], dim=1)
    # (3.3)  J = -1/(|B| S) sum_i sum_s log p(y_i | z_i, mu^(s)) + w_KL / N sum_c KL(q_c || p_0)
    return proxy_nca_nll(features, mu, labels, tau, exclude_positive) + kl_weight * proxies.kl(
        prior_scale, tril
    )
