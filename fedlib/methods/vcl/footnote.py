"""Footnote 2 of the paper: variational Proxy-NCA on the synthetic features of new classes.

Before a task's head is trained, Gaussians {m_c, L_c} of its classes are fitted with (3.3) to the features that the
server drew; the classes of earlier tasks take part in the sum with their own, fixed. The code has no such step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedlib import seeds
from fedlib.features.gaussian import ClassGaussian
from fedlib.methods.vcl.presets import Options
from fedlib.methods.vcl.proxies import FLOOR, VariationalProxies, kl_factor, variational_loss


def fit_new_classes(
    features: Tensor,
    labels: Tensor,
    start: Mapping[int, ClassGaussian],
    earlier: Sequence[ClassGaussian],
    options: Options,
    *,
    seed: int,
    task: int,
) -> dict[int, ClassGaussian]:
    """Return the fitted Gaussian of each new class, float32.

    Args:
        features: synthetic, of length 1, (M, d).
        labels: their classes, (M,) int64, all in ``start``.
        start: initial Gaussian of each new class: the moments of its mixture.
        earlier: Gaussians of the earlier classes.
        options: of the step ``server``; temperature, draws and prior are those of the clients.
        seed: of the run.
        task: from 0.
    """
    classes = sorted(start)
    dim = features.shape[1]
    trils = torch.stack([start[c].tril.float() for c in classes])
    trils.diagonal(dim1=-2, dim2=-1).clamp_(min=2 * FLOOR)
    proxies = VariationalProxies(torch.stack([start[c].mean.float() for c in classes]), trils)
    others = None
    if earlier:
        others = (
            torch.stack([q.mean.float() for q in earlier]),
            torch.stack([q.tril.float() for q in earlier]),
        )
    table = torch.full((classes[-1] + 1,), -1).index_copy_(
        0, torch.tensor(classes), torch.arange(len(classes)) + len(earlier)
    )
    rows = table[labels]
    batch_size = options.head_batch_size
    factor = options.kl_weight * kl_factor(options.kl_scale, len(labels), batch_size)
    draws = seeds.torch_generator(seed, "vcl/footnote", task)
    optimizer = torch.optim.AdamW(proxies.parameters(), lr=options.footnote_lr, weight_decay=0.0, fused=True)
    for _ in range(options.footnote_epochs):
        for batch in torch.randperm(len(labels), generator=draws).split(batch_size):
            optimizer.zero_grad(set_to_none=True)
            variational_loss(
                features[batch],
                rows[batch],
                proxies,
                draws,
                samples=options.mc_samples,
                tau=options.tau,
                kl_weight=factor,
                prior_scale=1 / math.sqrt(dim) if options.prior_scale is None else options.prior_scale,
                exclude_positive=options.exclude_positive and len(classes) + len(earlier) > 1,
                others=others,
            ).backward()
            optimizer.step()
    with torch.no_grad():
        means, fitted = proxies.mean, proxies.scale_tril()
        return {
            c: ClassGaussian(means[i].clone(), fitted[i].clone(), start[c].count)
            for i, c in enumerate(classes)
        }
