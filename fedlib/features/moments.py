"""Counts, means and pooled within-class scatter of features: streamed at a client, merged exactly at the server.

What a client of MPT (Jang et al.) reports about its features; nearest class means need it too. Letters:
C classes, d feature length, B batch, n_c and mu_c count and mean of class c, W the scatter
sum_c sum_i (z_i - mu_c)(z_i - mu_c)^T over the classes that are pooled. Everything is float64 on the CPU.

Sources: pairwise update of means and scatter, Chan, Golub and LeVeque (The American Statistician, 1983).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from fedlib.errors import InputError
from fedlib.features import symmetric
from fedlib.features.finite import all_finite


class ClassMoments:
    """Moments of labelled features, built batch by batch; also the message in which a client sends them.

    Args:
        num_classes: C.
        dim: d.
        leave_out: classes that are counted and averaged but do not enter the scatter. MPT leaves out the rare
            class: its covariance is estimated from the remaining classes only.
        scatter: False if no covariance is wanted; then none is computed or sent.

    Attributes:
        count: n_c, int64 (C,).
        mean: mu_c, float64 (C, d); zeros for a class without samples.
        has_scatter: whether there is a scatter.
        pooled: whether class c enters W, bool (C,).

    >>> moments = ClassMoments(num_classes=2, dim=1)
    >>> moments.update(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1]))
    >>> moments.count.tolist(), moments.mean.tolist(), moments.scatter.tolist()
    ([2, 1], [[2.0], [5.0]], [[2.0]])
    """

    def __init__(
        self, num_classes: int, dim: int, *, leave_out: Iterable[int] = (), scatter: bool = True
    ) -> None:
        if num_classes < 1 or dim < 1:
            raise InputError(f"num_classes is {num_classes} and dim is {dim}; allowed: both >= 1")
        self.count = torch.zeros(num_classes, dtype=torch.int64)
        self.mean = torch.zeros(num_classes, dim, dtype=torch.float64)
        self.has_scatter = scatter
        self._scatter: torch.Tensor | None = None
        self._triangle: torch.Tensor | None = None  # of a message, unpacked where somebody asks for it
        self.pooled = torch.ones(num_classes, dtype=torch.bool)
        for label in leave_out:
            if not 0 <= label < num_classes:
                raise InputError(f"class to leave out is {label}; allowed: 0 to {num_classes - 1}")
            self.pooled[label] = False

    @property
    def scatter(self) -> torch.Tensor | None:
        """W, float64 (d, d), exactly symmetric; None if not wanted."""
        if self._scatter is None and self.has_scatter:
            if self._triangle is None:
                self._scatter = torch.zeros(self.dim, self.dim, dtype=torch.float64)
            else:
                self._scatter = symmetric.unpack(self._triangle)
        return self._scatter

    @scatter.setter
    def scatter(self, value: torch.Tensor) -> None:
        self._scatter, self._triangle, self.has_scatter = value, None, True

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return self.mean.shape[0]

    @property
    def dim(self) -> int:
        """Feature length d."""
        return self.mean.shape[1]

    def update(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        """Add a batch.

        Args:
            features: (B, d), any float type and device; B may be 0.
            labels: int64 (B,).

        Raises:
            InputError: shapes that do not fit, a label without class, or a feature that is not finite.
        """
        z, y = checked_batch(features, labels, self.num_classes, self.dim)
        n_b = torch.bincount(y, minlength=self.num_classes)  # (C,)
        share = (
            n_b / (self.count + n_b).clamp(min=1).double()
        )  # n_b / n', double: torch divides integers in float32
        m_b = torch.zeros_like(self.mean).index_add_(0, y, z) / n_b.clamp(min=1)[:, None]  # (C, d)
        delta = m_b - self.mean  # meaningless where n_b = 0, weighted by 0 below
        if self.scatter is not None:
            # W += W_b + sum_c delta delta^T n_c n_b / n'
            centred = (z - m_b[y])[self.pooled[y]]
            weight = (self.count * share * self.pooled)[:, None]
            self.scatter = self.scatter + _symmetric(centred.T @ centred + delta.T @ (weight * delta))
        # mu += delta n_b / n'
        self.mean += delta * share[:, None]
        self.count = self.count + n_b

    @classmethod
    def merge(cls, parts: Sequence[ClassMoments]) -> ClassMoments:
        """Return the moments of all samples together, as if they had been in one place.

        Exact up to rounding, in any order: n_c = sum_k n_kc, mu_c = sum_k n_kc mu_kc / n_c,
        W = sum_k W_k + sum_k sum_c n_kc (mu_kc - mu_c)(mu_kc - mu_c)^T.

        Raises:
            InputError: no parts, or parts of different shape or pooling.
        """
        if not parts:
            raise InputError("nothing to merge; allowed: at least one part")
        first = parts[0]
        for part in parts:
            if (
                part.mean.shape != first.mean.shape
                or part.has_scatter != first.has_scatter
                or not torch.equal(part.pooled, first.pooled)
            ):
                raise InputError(
                    "parts differ in classes, feature length or pooled classes; allowed: all the same"
                )
        whole = cls(first.num_classes, first.dim, scatter=first.has_scatter)
        whole.pooled = first.pooled.clone()
        counts = torch.stack([part.count for part in parts])  # (K, C)
        means = torch.stack([part.mean for part in parts])  # (K, C, d)
        whole.count = counts.sum(dim=0)
        share = counts.double() / whole.count.clamp(min=1)  # (K, C)
        whole.mean = (share[:, :, None] * means).sum(dim=0)
        if whole.has_scatter:
            between = (means - whole.mean)[:, first.pooled].flatten(0, 1)  # (K * pooled classes, d)
            weight = counts[:, first.pooled].flatten()[:, None]
            whole.scatter = _within(parts) + _symmetric(between.T @ (weight * between))
        return whole

    def covariance(self) -> torch.Tensor:
        """Return the pooled within-class covariance Sigma = W / (N - M), float64 (d, d).

        N samples of the M pooled classes that have any.

        Raises:
            InputError: no scatter was asked for, or N <= M: one sample of a class says nothing about its spread.
        """
        if self.scatter is None:
            raise InputError("these moments were made with scatter=False and give no covariance")
        counts = self.count[self.pooled]
        samples, live = int(counts.sum()), int((counts > 0).sum())
        if samples <= live:
            raise InputError(
                f"{samples} samples of {live} classes give no covariance; allowed: more than one a class"
            )
        return self.scatter / (samples - live)

    def to_tensors(self, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
        """Return the message: only classes that have samples, the scatter as its upper triangle.

        Args:
            dtype: of means and scatter. float32 is what the paper's byte counts assume; float64 loses nothing.

        Returns:
            ``class_ids`` int32 (M,), ``count`` int32 (M,), ``mean`` (M, d) and, if there is one, ``scatter``
            (d(d + 1)/2,).
        """
        live = torch.nonzero(self.count).flatten()
        tensors = {
            "class_ids": live.to(torch.int32),
            "count": self.count[live].to(torch.int32),
            "mean": self.mean[live].to(dtype),
        }
        if self.scatter is not None:
            tensors["scatter"] = symmetric.pack(self.scatter).to(dtype)
        return tensors

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, torch.Tensor], num_classes: int, *, leave_out: Iterable[int] = ()
    ) -> ClassMoments:
        """Read a message of :meth:`to_tensors`.

        Args:
            tensors: the message.
            num_classes: C, which the message does not carry.
            leave_out: as the sender had it.

        Raises:
            InputError: a tensor missing, of another shape, or with values that no client can have.
        """
        if missing := {"class_ids", "count", "mean"} - set(tensors):
            raise InputError(f"message has no {', '.join(sorted(missing))}")
        ids, count, mean = tensors["class_ids"].long(), tensors["count"].long(), tensors["mean"].double()
        if ids.ndim != 1 or count.shape != ids.shape or mean.ndim != 2 or len(mean) != len(ids):
            shapes = {key: tuple(tensors[key].shape) for key in ("class_ids", "count", "mean")}
            raise InputError(f"message has shapes {shapes}; allowed: (M,), (M,), (M, d)")
        if len(ids) and (ids.min() < 0 or ids.max() >= num_classes or len(ids.unique()) < len(ids)):
            raise InputError(
                f"class_ids are {ids.tolist()}; allowed: different numbers from 0 to {num_classes - 1}"
            )
        if len(ids) and count.min() < 1:
            raise InputError(f"counts are {count.tolist()}; allowed: at least 1 for each class that is sent")
        moments = cls(num_classes, mean.shape[1], leave_out=leave_out, scatter="scatter" in tensors)
        moments.count[ids] = count
        moments.mean[ids] = mean
        if moments.has_scatter:
            moments._triangle = tensors["scatter"].double()
            if (dim := symmetric.dim_of(moments._triangle)) != moments.dim:
                raise InputError(f"scatter is for {dim} features; the means have {moments.dim}")
        for key in ("mean", "scatter"):
            if key in tensors and not all_finite(tensors[key]):
                raise InputError(f"{key} of the message holds NaN or infinite values")
        return moments


def checked_batch(
    features: torch.Tensor, labels: torch.Tensor, num_classes: int, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features as float64 (B, d) and labels as int64 (B,), both on the CPU.

    Raises:
        InputError: shapes that do not fit, a label without class, or a feature that is not finite.
    """
    z, y = features.detach().to("cpu", torch.float64), labels.to("cpu")
    if z.ndim != 2 or z.shape[1] != dim or y.shape != z.shape[:1] or y.is_floating_point():
        raise InputError(
            f"features {tuple(z.shape)} and {y.dtype} labels {tuple(y.shape)}; "
            f"allowed: (B, {dim}) and integers (B,)"
        )
    y = y.long()
    if len(y) and (y.min() < 0 or y.max() >= num_classes):
        raise InputError(f"labels are {int(y.min())} to {int(y.max())}; allowed: 0 to {num_classes - 1}")
    finite = torch.isfinite(z).all(dim=1)
    if not finite.all():
        at = int(torch.nonzero(~finite)[0])
        raise InputError(
            f"features of sample {at} (class {int(y[at])}) are NaN or infinite: has training diverged?"
        )
    return z, y


def _within(parts: Sequence[ClassMoments]) -> torch.Tensor:
    """Return the sum of the scatters, (d, d); triangles are added as they came and unpacked once."""
    triangles = [part._triangle for part in parts if part._triangle is not None]
    if len(triangles) == len(parts):
        return symmetric.unpack(torch.stack(triangles).sum(dim=0))
    return torch.stack([part.scatter for part in parts if part.scatter is not None]).sum(dim=0)


def _symmetric(matrix: torch.Tensor) -> torch.Tensor:
    return (matrix + matrix.T) / 2
