"""Gradient projection memory (Saha et al., ICLR 2021): steps orthogonal to what earlier inputs span."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from fedlib.errors import InputError
from fedlib.federation.model_state import State
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual.importance import sample
from fedlib.methods.continual.inputs import linear_maps, matrices, matrix, recorded
from fedlib.methods.continual.strategy import Context, Strategy, evaluation
from fedlib.methods.continual.training import Training

COLUMNS = 4096  # of an activation matrix, at most
FLOATS = (
    2**26
)  # of the patches that are cut at once, at most: 256 MiB. At 224 pixels a single layer can have more
ROUNDING = 1e-12  # of the cumulative shares of the squared singular values


def leading(r: Tensor, wanted: float) -> Tensor:
    """Return the fewest left singular vectors of R whose squared singular values add up to ``wanted``.

    Args:
        r: R (p, n), float64.
        wanted: in units of the squared norm of R.

    Returns:
        (p, k) float64.
    """
    if r.shape[1] > r.shape[0]:  # R R^T is smaller, and has the same left vectors
        values, vectors = torch.linalg.eigh(r @ r.T)
        squares, u = values.flip(0).clamp(min=0), vectors.flip(1)
    else:
        u, singular, _ = torch.linalg.svd(r, full_matrices=False)
        squares = singular.square()
    reached = torch.cat([squares.new_zeros(1), squares.cumsum(0)])
    enough = reached >= wanted - ROUNDING * max(float(reached[-1]), wanted)
    return u[:, : int(enough.double().argmax()) if enough.any() else u.shape[1]]


def grown(basis: Tensor, r: Tensor, threshold: float) -> Tensor:
    """Return a basis that explains the share ``threshold`` of R as well.

    Args:
        basis: B (p, k) float64, orthonormal columns; k may be 0.
        r: R (p, n) float64, columns are inputs.
        threshold: eps, 0 to 1.

    Returns:
        [B, U] (p, k'), orthonormal columns, k <= k' <= p.
    """
    # Rh = R - B B^T R
    rest = r - basis @ (basis.T @ r)
    # the leading vectors of Rh until (||R||^2 - ||Rh||^2 + sum_{i<=k} s_i^2) / ||R||^2 >= eps
    total, left = r.square().sum(), rest.square().sum()
    new = leading(rest, float(threshold * total - (total - left)))
    new = new[:, : basis.shape[0] - basis.shape[1]]
    if not new.shape[1]:
        return basis
    q, _ = torch.linalg.qr(torch.cat([basis, new], dim=1))
    return q


@dataclass(kw_only=True)
class GPM(Strategy):
    """Gradients lose their part in the span of earlier inputs: G <- G - (G B) B^T.

    From the second task on biases, the affine parameters of norms, convolutions in groups and attention stay as
    they are (but for the biases of new rows of the head), and so do the head's earlier rows. Each linear map then
    keeps its outputs for earlier inputs; the running statistics of BatchNorm, which the authors' networks do
    without, still follow the new task. Momentum and weight decay would leave the allowed directions, so training
    uses neither.

    Memory, whatever the size of the images: for each layer of p inputs 4,096 columns, p (4,096 + 2 p) float64 at
    most while its basis grows and p^2 float64 and float32 for the basis; and once 256 MiB of patches.

    Attributes:
        threshold: eps of the first task.
        increase: of eps with each task; eps is 1 at most.
        samples: of a task for the inputs.
        lr: of SGD; None for the suite's.
    """

    label: ClassVar[str] = "GPM"
    category: ClassVar[str] = "R"
    stores: ClassVar[str] = "basis of each layer"

    threshold: float = 0.97
    increase: float = 0.003
    samples: int = 125
    lr: float | None = 0.01

    maps: dict[str, nn.Module] = field(init=False, repr=False)
    bases: dict[str, Tensor] = field(init=False, repr=False)  # float64, on the CPU
    projections: dict[str, Tensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1 or not 0 <= self.increase <= 1:
            raise InputError(
                f"threshold is {self.threshold!r} and increase {self.increase!r}; allowed: 0 to 1"
            )
        if self.samples < 1 or not (self.lr is None or self.lr > 0):
            raise InputError(
                f"samples is {self.samples!r} and lr {self.lr!r}; allowed: at least 1, above 0 or None"
            )

    @classmethod
    def small(cls) -> Self:
        """Return the budget for small images: 64 samples, the suite's step size."""
        return cls(samples=64, lr=None)

    def adapt(self, training: Training) -> Training:
        """Return plain SGD with the method's step size."""
        return replace(training, momentum=0.0, weight_decay=0.0, lr=self.lr or training.lr)

    @property
    def frozen_rows(self) -> int:
        """All rows of earlier tasks."""
        return self.old

    def start(self, context: Context) -> None:
        """Begin without bases."""
        super().start(context)
        self.maps = matrices(linear_maps(self.net, context.data.batch(torch.arange(1))[0]))
        self.bases, self.projections = {}, {}

    def after_backward(self) -> None:
        """Project the gradients."""
        if not self.bases:
            return
        weights = {id(module.get_parameter("weight")): name for name, module in self.maps.items()}
        for name, p in self.net.named_parameters():
            if p.grad is None:
                continue
            if id(p) in weights:
                layer = weights[id(p)]
                if self.bases[layer].shape[1] == self.bases[layer].shape[0]:
                    p.grad.zero_()  # nothing is left, not even rounding
                elif self.bases[layer].shape[1]:
                    # G <- G - (G B) B^T
                    g, b = p.grad.reshape(len(p), -1), self.projections[layer]
                    p.grad -= ((g @ b) @ b.T).view_as(p.grad)
            elif name != "head.bias":
                p.grad.zero_()

    def inputs(self, data: ImageData) -> dict[str, Tensor]:
        """Return R_l of each layer, (p_l, at most 4096) float64 on the CPU, columns are inputs."""
        chosen = sample(data, self.samples, self.context.generator("samples"))
        with recorded(self.maps) as latest, evaluation(self.net), torch.no_grad():
            self.net(chosen.batch(torch.arange(1))[0])
            shapes = {name: matrix(module, latest[name]).shape[1:] for name, module in self.maps.items()}
            wanted = {name: self._columns(name, len(chosen) * places) for name, (places, _) in shapes.items()}
            found = {name: torch.empty(len(wanted[name]), p) for name, (_, p) in shapes.items()}
            size = min(32, max(1, FLOATS // max(places * p for places, p in shapes.values())))
            for rows in torch.arange(len(chosen)).split(size):
                self.net(chosen.batch(rows)[0])
                for name, module in self.maps.items():
                    r = matrix(module, latest[name]).flatten(0, 1)
                    place = wanted[name] - int(rows[0]) * shapes[name][0]
                    inside = (place >= 0) & (place < len(r))
                    found[name][inside] = r[place[inside].to(r.device)].cpu()
        return {name: r.double().T for name, r in found.items()}

    def _columns(self, name: str, total: int) -> Tensor:
        """Return which of a layer's inputs are used, all or 4,096, as places among those of all samples."""
        if total <= COLUMNS:
            return torch.arange(total)
        return torch.randperm(total, generator=self.context.generator("columns", name))[:COLUMNS]

    def end_task(self, data: ImageData) -> None:
        """Let the bases grow by what the present task needs."""
        threshold = min(1.0, self.threshold + self.increase * self.context.t)
        for name, r in self.inputs(data).items():
            basis = self.bases.get(name, r.new_zeros(len(r), 0))
            self.bases[name] = grown(basis, r, threshold)
            self.projections[name] = self.bases[name].float().to(self.net.head.weight.device)

    def state_dict(self) -> State:
        """Return the bases as training uses them, float32."""
        return dict(self.projections)
