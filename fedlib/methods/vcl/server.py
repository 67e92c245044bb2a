"""The server: mixtures of the clients' class Gaussians, class prior, synthetic features (section 3.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from torch import Tensor

from fedlib.errors import InputError, choose
from fedlib.features.gaussian import ClassGaussian, Mixture, cholesky, matched, sample_mixtures
from fedlib.federation.model_state import State
from fedlib.methods.vcl import messages
from fedlib.methods.vcl.presets import Aggregation, Options, Weighting


@dataclass(frozen=True)
class GlobalModel:
    """What the server keeps: the generator of each class and the prior. Heads are trained from nothing else.

    Attributes:
        mixtures: q_c by class; None for a class that no client sent.
        prior: p, float64 (C,); 0 for a class that no client sent.
    """

    mixtures: tuple[Mixture | None, ...]
    prior: Tensor

    @property
    def counts(self) -> Tensor:
        """Samples behind each class, int64 (C,)."""
        return torch.tensor([0 if q is None else q.count for q in self.mixtures])

    @property
    def missing(self) -> tuple[int, ...]:
        """Classes that no client sent: no features can be drawn for them."""
        return tuple(c for c, q in enumerate(self.mixtures) if q is None)

    @property
    def dim(self) -> int:
        """Feature length d."""
        return next(len(q.components[0].mean) for q in self.mixtures if q is not None)

    def to_tensors(self) -> State:
        """Return everything as tensors by name, for storage."""
        tensors = {"prior": self.prior}
        for label, q in enumerate(self.mixtures):
            for k, part in enumerate(q.components if q is not None else ()):
                own = messages.pack({label: part})
                tensors |= {f"{k}/{name}": tensor for name, tensor in own.items()}
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> GlobalModel:
        """Undo :meth:`to_tensors`; values come back in float32."""
        parts: list[list[ClassGaussian]] = [[] for _ in tensors["prior"]]
        for k in sorted({int(name.split("/")[0]) for name in tensors if name != "prior"}):
            prefix = f"{k}/"
            own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
            for label, part in messages.unpack(own).items():
                parts[label].append(part)
        return cls(tuple(Mixture(tuple(p)) if p else None for p in parts), tensors["prior"])


def aggregate(
    gaussians: Mapping[int, Mapping[int, ClassGaussian]], num_classes: int, options: Options
) -> GlobalModel:
    """Return the server's model from what the clients sent.

    Args:
        gaussians: by client and class. The order of clients does not matter.
        num_classes: C.
        options: of the step ``server``.

    Raises:
        InputError: no Gaussian at all, a class out of range, or lengths that differ.
    """
    sent = {(k, c): q for k, own in gaussians.items() for c, q in own.items()}
    if not sent:
        raise InputError("no client sent a class; allowed: at least one client with one class")
    wrong = [c for _, c in sent if not 0 <= c < num_classes]
    if wrong:
        raise InputError(f"class {wrong[0]} was sent; allowed: 0 to {num_classes - 1}")
    lengths = {k: len(q.mean) for (k, _), q in sent.items()}
    if len({len(q.mean) for q in sent.values()}) != 1:
        raise InputError(
            f"clients sent Gaussians of different lengths, {lengths}; allowed: one length for all"
        )
    mixtures: list[Mixture | None] = []
    for label in range(num_classes):
        parts = tuple(sent[k, label] for k in sorted(gaussians) if (k, label) in sent)
        # q_c(z) = sum_k pi_kc N(z | m_kc, Sigma_kc),   pi_kc = n_kc / sum_k n_kc
        mixtures.append(_combined(Mixture(parts), options.aggregation) if parts else None)
    counts = torch.tensor([0 if q is None else q.count for q in mixtures])
    prior = torch.zeros(num_classes, dtype=torch.float64)
    held = counts > 0
    prior[held] = class_prior(
        counts[held], options.beta, options.floor, options.cap, exact=options.exact_clip
    )
    return GlobalModel(tuple(mixtures), prior)


def _combined(mixture: Mixture, aggregation: Aggregation) -> Mixture:
    if aggregation == "mixture" or len(mixture.components) == 1:
        return mixture
    if aggregation == "matched":
        return Mixture((_single(matched(mixture)),))
    # means and covariances averaged, without the spread of the means
    sigma = sum(share * part.cov() for share, part in zip(mixture.weights, mixture.components))
    assert isinstance(sigma, Tensor)
    return Mixture((_single(ClassGaussian(mixture.mean(), cholesky(sigma), mixture.count)),))


def _single(q: ClassGaussian) -> ClassGaussian:
    return ClassGaussian(q.mean.float(), q.tril.float(), q.count)


def class_prior(counts: Tensor, beta: float, floor: float, cap: float, *, exact: bool = False) -> Tensor:
    """Return the mixed and clipped class prior, float64 (C,), summing to 1.

        p = beta phat + (1 - beta) / C,   clip to [floor, cap],   renormalise

    The last step can lift values above the cap again, and with two classes and a cap of 1/4 it always gives (1/2,
    1/2): this is what the paper says and its code does.

    Args:
        counts: N_c >= 0, (C,), not all 0.
        beta: share of the empirical frequencies.
        floor: least value before the last step.
        cap: largest value before the last step.
        exact: project onto {floor <= p <= cap, sum p = 1} instead (nearest point), so that the bounds hold.

    Raises:
        InputError: no samples, or ``exact`` with bounds that no prior meets.
    """
    n = counts.double()
    if n.numel() == 0 or not (n >= 0).all() or n.sum() <= 0:
        raise InputError(f"class counts are {counts.tolist()}; allowed: >= 0 and not all 0")
    p = beta * n / n.sum() + (1 - beta) / len(n)
    if not exact:
        clipped = p.clamp(floor, cap)
        return clipped / clipped.sum()
    if not len(n) * floor <= 1 <= len(n) * cap:
        raise InputError(
            f"floor {floor} and cap {cap} with {len(n)} classes and exact_clip; "
            f"allowed: floor <= {1 / len(n):.4g} <= cap"
        )
    # the nearest point is clip(p + t) with the t at which it sums to 1
    shift = brentq(lambda t: float((p + t).clamp(floor, cap).sum()) - 1, -1, 1, xtol=1e-15)
    return (p + shift).clamp(floor, cap)


def class_sizes(
    model: GlobalModel, classes: Sequence[int], per_class: int, weighting: Weighting
) -> dict[int, int]:
    """Return how many features are drawn for each class; classes that no client sent get 0.

    Args:
        model: the server's model.
        classes: wanted.
        per_class: M.
        weighting: ``equal``: M each; ``prior``: max(1, round(M_tot p_c / sum p)), M_tot = M times the classes.

    Raises:
        InputError: unknown weighting.
    """
    choose("weighting", weighting, ("equal", "prior"))
    held = [c for c in classes if model.mixtures[c] is not None]
    sizes = dict.fromkeys(classes, 0)
    if per_class == 0 or not held:
        return sizes
    if weighting == "equal":
        return sizes | dict.fromkeys(held, per_class)
    p = model.prior[held] / model.prior[held].sum()
    wanted = (per_class * len(held) * p).round().long().clamp_min(1)
    return sizes | dict(zip(held, wanted.tolist()))


def synthesise(
    mixtures: Sequence[Mixture | None], sizes: Mapping[int, int], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return synthetic features of length 1, float32 (M, d), and their classes, int64 (M,), class by class.

    The encoder's outputs are scaled to length 1 at test time, so the head has to see unit vectors.

    Args:
        mixtures: by class.
        sizes: features of each class; see :func:`class_sizes`.
        generator: on the CPU.
    """
    wanted = [(c, mixtures[c], n) for c, n in sorted(sizes.items()) if n]
    chosen = [q for _, q, _ in wanted if q is not None]
    if len(chosen) < len(wanted):
        missing = [c for c, q, _ in wanted if q is None]
        held = [c for c, q in enumerate(mixtures) if q is not None]
        raise InputError(f"features wanted of classes {missing}, which no client sent; allowed: {held}")
    numbers = torch.tensor([n for _, _, n in wanted], dtype=torch.int64)
    labels = torch.tensor([c for c, _, _ in wanted], dtype=torch.int64).repeat_interleave(numbers)
    return sample_mixtures(chosen, numbers.tolist(), generator), labels
