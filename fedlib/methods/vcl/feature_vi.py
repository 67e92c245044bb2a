"""Class Gaussians by diagonal variational inference on the features (the public code's ``vi_diag``; FBPFT-VI).

    mu_c ~ N(0, I),   lambda_c ~ N(0, I),   z_i | y_i = c ~ N(mu_c, diag(exp(2 lambda_c)))
    guide: independent Gaussians N(m, exp(2 s)) for mu and N(l, exp(2 r)) for lambda
    result: mean m = E_q[mu],   L = diag(exp(l)) = diag(exp(E_q[lambda]))

The code's recipe starts all guide means at 0 and all guide scales at 1 and takes at most 1,500 steps of Adam with
step size 1e-3. Adam moves a coordinate by about its step size, and lambda would have to reach log(1/16) = -2.8
for unit vectors of 256 dimensions: it ends far from its optimum. Our recipe starts at the sample moments. The data
enter through n_c, sum z and sum z^2 only, so that a step costs O(C d).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedlib import seeds
from fedlib.errors import InputError, choose
from fedlib.features.gaussian import ClassGaussian
from fedlib.features.moments import ClassMoments, checked_batch

CHANGE = 1e-4  # of the ELBO, relative, over CHECK steps, below which our recipe stops
CHECK = 25
LEAST_SPREAD = 1e-3  # initial standard deviation of a dimension that does not vary


@dataclass(frozen=True)
class FeatureVI:
    """Result of the inference.

    Attributes:
        gaussians: diagonal Gaussian of each class, float64.
        steps: Adam steps taken.
        elbo: at the end; of one draw in the recipe of the code.
    """

    gaussians: dict[int, ClassGaussian]
    steps: int
    elbo: float


def fit_feature_vi(
    features: Tensor,
    labels: Tensor,
    *,
    recipe: Literal["ours", "code"] = "ours",
    steps: int = 2000,
    lr: float = 1e-2,
    seed: int = 0,
    client: int = 0,
) -> FeatureVI:
    """Fit all classes of a client at once.

    Args:
        features: z, (n, d).
        labels: (n,) int64.
        recipe: ``ours``: start at the sample moments, exact ELBO, stop at convergence; ``code``: start at 0 with
            scales of 1, ELBO of one draw, all steps.
        steps: Adam steps, at most.
        lr: step size of Adam.
        seed: of the run.
        client: client id; names the random stream.

    Raises:
        InputError: unknown recipe, shapes that do not fit, no samples, or features that are not finite.
    """
    choose("recipe", recipe, ("ours", "code"))
    if not len(labels):
        raise InputError("no features to fit; allowed: at least one sample")
    num_classes = int(labels.max()) + 1
    z, y = checked_batch(features, labels, num_classes, features.shape[-1])
    data = ClassMoments(num_classes, z.shape[1], scatter=False)
    data.update(z, y)
    held = torch.nonzero(data.count).flatten()
    mean, n = data.mean[held], data.count[held].double()[:, None]
    scatter = torch.zeros_like(data.mean).index_add_(0, y, (z - data.mean[y]).square())[held]

    free = len(y) - len(held)
    pooled = scatter.sum(0) / free if free else torch.full_like(mean[0], 1 / z.shape[1])
    spread = torch.where(n > 1, scatter / (n - 1).clamp_min(1), pooled).sqrt().clamp_min(LEAST_SPREAD)
    zero = torch.zeros_like(mean)
    start = [mean, spread.log()] if recipe == "ours" else [zero, zero]
    # about the widths of the posterior: sigma / sqrt(n) of the mean, 1 / sqrt(2 n) of the log deviation
    widths = (
        [spread.log() - 0.5 * n.log(), -0.5 * (2 * n).log().expand_as(mean)]
        if recipe == "ours"
        else [zero, zero]
    )
    m, l, s, r = (nn.Parameter(t.clone()) for t in (*start, *widths))
    generator = seeds.torch_generator(seed, "vcl/feature-vi", client)

    def elbo() -> Tensor:
        # -KL(N(m, e^2s) || N(0, 1)) - KL(N(l, e^2r) || N(0, 1))
        kl = sum(0.5 * ((2 * width).exp() + centre**2 - 1) - width for centre, width in ((m, s), (l, r)))
        if recipe == "ours":
            # E_q sum_i log N(z_i | mu, e^2lambda) = -n l - 1/2 E[e^-2lambda] (S + n (zbar - m)^2 + n e^2s),
            # E[e^-2lambda] = e^(-2 l + 2 e^2r)
            precision = (-2 * l + 2 * (2 * r).exp()).exp()
            squares = scatter + n * (mean - m) ** 2 + n * (2 * s).exp()
            return (-n * l - 0.5 * precision * squares - kl).sum()
        mu = m + s.exp() * torch.randn(m.shape, generator=generator, dtype=m.dtype)
        lam = l + r.exp() * torch.randn(l.shape, generator=generator, dtype=l.dtype)
        return (-n * lam - 0.5 * (-2 * lam).exp() * (scatter + n * (mean - mu) ** 2) - kl).sum()

    optimizer = torch.optim.Adam([m, l, s, r], lr=lr)
    before, value, taken = float("-inf"), float("nan"), 0
    for taken in range(1, steps + 1):
        optimizer.zero_grad(set_to_none=True)
        bound = elbo()
        (-bound).backward()
        optimizer.step()
        if taken % CHECK == 0 or taken == steps:
            value = float(bound.detach())
            if recipe == "ours" and abs(value - before) <= CHANGE * abs(value):
                break
            before = value
    means, sigmas = m.detach(), l.detach().exp()
    gaussians = {
        int(label): ClassGaussian(means[i].clone(), sigmas[i].diag(), int(n[i]))
        for i, label in enumerate(held)
    }
    return FeatureVI(gaussians, taken, value)
