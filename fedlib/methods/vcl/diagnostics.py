"""How synthetic features of a class differ from the real ones.

The paper reads the covariance of a proxy as the scatter of the class and draws features from it. But q_c is the
posterior of a class's weight vector: nothing ties its width to the scatter of the features. These numbers show it.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from fedlib import seeds
from fedlib.features.gaussian import SMALLEST_NORM, Mixture

LARGEST = 1000  # features of each kind in the two-sample test
COLUMNS = (
    "class",
    "real",
    "synthetic",
    "cosine_real",
    "cosine_synthetic",
    "scatter_ratio",
    "nearest_neighbour",
)


def diagnose(
    mixtures: Mapping[int, Mixture], features: Tensor, labels: Tensor, *, samples: int = 500, seed: int = 0
) -> pd.DataFrame:
    """Return a row for each class that has a mixture and real features.

    Columns: ``class``; ``real`` and ``synthetic``, numbers of features; ``cosine_real``, mean cosine of real
    features to their mean; ``cosine_synthetic``, of synthetic ones to the mixture's mean; ``scatter_ratio``, trace
    of the synthetic covariance over the real one (NaN below two real features); ``nearest_neighbour``, see
    :func:`two_sample_accuracy`.

    Args:
        mixtures: by class; those of one client have one component.
        features: real, of length 1, (n, d).
        labels: (n,) int64.
        samples: synthetic features of each class.
        seed: of the draws.
    """
    rows = []
    for label, q in sorted(mixtures.items()):
        real = features[labels == label]
        if not len(real):
            continue
        made = q.sample(samples, seeds.torch_generator(seed, "vcl/diagnostics", label))
        centre = q.mean().float()
        spread = float(scatter(real)) if len(real) > 1 else float("nan")
        rows.append(
            (
                label,
                len(real),
                samples,
                float(functional.cosine_similarity(real, real.mean(0, keepdim=True)).mean()),
                float(functional.cosine_similarity(made, centre[None]).mean()),
                float(scatter(made)) / spread if spread > 0 else float("nan"),
                two_sample_accuracy(real, made, seed=seed),
            )
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def scatter(features: Tensor) -> Tensor:
    """Return the trace of the covariance of features (n, d), n > 1, ()."""
    return features.double().var(dim=0).sum()


def two_sample_accuracy(first: Tensor, second: Tensor, *, seed: int = 0) -> float:
    """Return how often the nearest other feature is of the same kind: 0.5 if the two kinds cannot be told apart.

    Leave-one-out nearest-neighbour test (Lopez-Paz and Oquab 2017) on equally many of both kinds, 1,000 at most;
    NaN below two of each.

    Args:
        first: (n, d).
        second: (m, d).
        seed: of the choice of features.
    """
    size = min(len(first), len(second), LARGEST)
    if size < 2:
        return float("nan")
    generator = seeds.torch_generator(seed, "vcl/two-sample")
    both = torch.cat(
        [x[torch.randperm(len(x), generator=generator)[:size]].double() for x in (first, second)]
    )
    distance = torch.cdist(both, both)
    distance.fill_diagonal_(torch.inf)
    kind = torch.arange(2 * size) >= size
    return float((kind[distance.argmin(1)] == kind).double().mean())


def directions(mixtures: Mapping[int, Mixture]) -> Tensor:
    """Return the cosines between the mean directions of all pairs of classes, (C, C), by ascending class."""
    means = torch.stack([mixtures[c].mean() for c in sorted(mixtures)])
    unit = functional.normalize(means, dim=1, eps=SMALLEST_NORM)
    return unit @ unit.T
