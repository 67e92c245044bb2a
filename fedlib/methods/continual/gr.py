"""Deep generative replay (Shin et al., NeurIPS 2017) with a variational autoencoder.

Sizes and rates are those of van de Ven et al. 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib import seeds
from fedlib.errors import InputError, choose
from fedlib.federation.model_state import State, model_state
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual.lwf import check_temperature
from fedlib.methods.continual.strategy import Context, Net, Strategy, frozen_copy, prefixed
from fedlib.methods.continual.training import endless
from fedlib.methods.federated.fedavg import batch_norm_layers
from fedlib.methods.vcl.head import kd_loss


class Size(NamedTuple):
    """Units of the hidden layers, iterations of a task, samples of a batch, and the step size of Adam."""

    hidden: int
    iterations: int
    batch_size: int
    lr: float


GREY, COLOURED = Size(400, 2000, 128, 1e-3), Size(2000, 5000, 256, 1e-4)
"""The defaults of van de Ven et al. 2020, theirs for MNIST and for CIFAR."""


def layers(sizes: Sequence[int]) -> nn.Sequential:
    """Return linear layers of these sizes, a ReLU after each."""
    parts: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        parts += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*parts)


def kl_to_standard(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return KL(N(mean, diag exp log_variance) || N(0, I)) of each row (B, z), (B,)."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)


class VAE(nn.Module):
    """Variational autoencoder of vectors with values 0 to 1, of linear layers.

    Args:
        size: length of a vector.
        hidden: units of the two hidden layers on either side.
        latent: length of z.
    """

    def __init__(self, size: int, hidden: int, latent: int) -> None:
        super().__init__()
        self.latent = latent
        self.encoder = layers((size, hidden, hidden))
        self.moments = nn.Linear(hidden, 2 * latent)
        self.decoder = nn.Sequential(layers((latent, hidden, hidden)), nn.Linear(hidden, size))

    def losses(self, v: Tensor, generator: torch.Generator, recon: str) -> tuple[Tensor, Tensor]:
        """Return reconstruction error and KL of each vector (B, size), (B,) each.

        ``recon`` is ``bernoulli`` (cross-entropy with the values as probabilities) or ``mse``; both are sums.
        """
        mean, log_variance = self.moments(self.encoder(v)).chunk(2, dim=1)
        noise = torch.randn(mean.shape, generator=generator).to(mean.device)
        out = self.decoder(mean + (log_variance / 2).exp() * noise)
        if recon == "bernoulli":
            error = functional.binary_cross_entropy_with_logits(out, v, reduction="none").sum(1)
        else:
            error = (out.sigmoid() - v).square().sum(1)
        return error, kl_to_standard(mean, log_variance)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Return generated vectors (count, size), values 0 to 1."""
        z = torch.randn(count, self.latent, generator=generator)
        return torch.sigmoid(self.decoder(z.to(self.moments.weight.device)))


def replay_loss(logits: Tensor, old: Tensor, targets: str, temperature: float) -> Tensor:
    """Return the loss () on replayed samples.

    ``hard`` is the cross-entropy with the old solver's most likely class; ``soft`` is KD_T over all rows with
    probability zero for classes that the old solver does not know.

    Args:
        logits: (B, rows).
        old: logits of the previous solver, (B, old rows).
        targets: ``hard`` or ``soft``.
        temperature: T.
    """
    if targets == "hard":
        return functional.cross_entropy(logits, old.argmax(1))
    impossible = old.new_full((len(old), logits.shape[1] - old.shape[1]), -1e9)
    return kd_loss(logits, torch.cat([old, impossible], dim=1), temperature)


@dataclass(kw_only=True)
class GR(Strategy):
    """Each batch of the t-th task has the loss (1/t) L(current) + (1 - 1/t) L(replay).

    L is the cross-entropy for the solver, reconstruction + KL for the generator. Replayed images come from the
    previous generator, their targets from the previous solver.

    Attributes:
        replay_targets: ``hard`` the previous solver's most likely class, or ``soft``.
        temperature: of ``soft``.
        recon: ``bernoulli`` or ``mse``.
        hidden: units of the generator's hidden layers; None is 400 for grey and 2,000 for coloured images.
        latent: length of z.
        iterations: of a task; None is 2,000 and 5,000.
        batch_size: current samples, and as many replayed ones; None is 128 and 256.
        lr: of Adam; None is 1e-3 and 1e-4.
    """

    label: ClassVar[str] = "GR"
    category: ClassVar[str] = "G"
    stores: ClassVar[str] = "previous solver and generator"
    all_rows: ClassVar[bool] = True

    replay_targets: Literal["hard", "soft"] = "hard"
    temperature: float = 2.0
    recon: Literal["bernoulli", "mse"] = "bernoulli"
    hidden: int | None = None
    latent: int = 100
    iterations: int | None = None
    batch_size: int | None = None
    lr: float | None = None

    size: Size = field(init=False, repr=False)
    generator: VAE = field(init=False, repr=False)
    previous: tuple[Net, VAE] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        choose("replay_targets", self.replay_targets, ("hard", "soft"))
        choose("recon", self.recon, ("bernoulli", "mse"))
        check_temperature(self.temperature)
        check_generator(self)

    @classmethod
    def small(cls) -> Self:
        """Return the budget for small images: 256 units, z of 16, 300 iterations of 32 samples."""
        return cls(hidden=256, latent=16, iterations=300, batch_size=32, lr=1e-3)

    def start(self, context: Context) -> None:
        """Begin with a new generator."""
        super().start(context)
        image = context.data.images[0]
        own = {name: value for name in Size._fields if (value := getattr(self, name)) is not None}
        self.size = (GREY if image.shape[-1] == 1 else COLOURED)._replace(**own)
        with seeds.torch_global(context.seed, "generator"):
            self.generator = VAE(int(image.size), self.size.hidden, self.latent)
        self.generator.to(context.net.head.weight.device)
        self.previous = None

    def pixels(self, x: Tensor) -> Tensor:
        """Return normalised images (B, channels, H, W) as vectors of values 0 to 1."""
        mean, std = (x.new_tensor(v).view(1, -1, 1, 1) for v in self._scale())
        return (x * std + mean).clamp(0, 1).flatten(1)

    def images(self, v: Tensor) -> Tensor:
        """Return vectors (B, size) of values 0 to 1 as normalised images."""
        height, width, channels = self.context.data.images.shape[1:]
        mean, std = (v.new_tensor(s).view(1, -1, 1, 1) for s in self._scale())
        return (v.view(-1, channels, height, width) - mean) / std

    def _scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        normalizer = self.context.data.normalizer
        return normalizer.mean, normalizer.std

    def replayed(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return images of the previous generator (count, channels, H, W) and the previous solver's logits."""
        assert self.previous is not None
        solver, source = self.previous
        with torch.no_grad():
            x = self.images(source.sample(count, generator))
            return x, solver(x)

    def learn(self, data: ImageData, validation: ImageData | None) -> list[dict[str, float]]:
        """Train solver and generator for a fixed number of steps."""
        seed, t = self.place
        solver = torch.optim.Adam(self.net.parameters(), self.size.lr, fused=True)
        maker = torch.optim.Adam(self.generator.parameters(), self.size.lr, fused=True)
        stream = endless(
            data, self.size.batch_size, lambda k: seeds.torch_generator(seed, "batches", "gr", t, k)
        )
        noise = self.context.generator("noise")
        share = 1 / (t + 1)
        sums = torch.zeros(2)
        with seeds.torch_global(seed, "dropout", "gr", t):
            for _ in range(self.size.iterations):
                x, y = next(stream)
                self.net.train()
                if len(x) == 1:
                    for layer in batch_norm_layers(self.net):
                        layer.eval()
                if self.previous is None:
                    loss = self.cross_entropy(self.net(x), y)
                    both, weight = self.pixels(x), x.new_full((len(x),), 1 / len(x))
                else:
                    old_x, old = self.replayed(self.size.batch_size, noise)
                    logits = self.net(torch.cat([x, old_x]))
                    # (1/t) L(current) + (1 - 1/t) L(replay)
                    loss = share * self.cross_entropy(logits[: len(x)], y)
                    loss = loss + (1 - share) * replay_loss(
                        logits[len(x) :], old, self.replay_targets, self.temperature
                    )
                    both = torch.cat([self.pixels(x), self.pixels(old_x)])
                    weight = torch.cat(
                        [
                            x.new_full((len(x),), share / len(x)),
                            x.new_full((len(old_x),), (1 - share) / len(old_x)),
                        ]
                    )
                error, kl = self.generator.losses(both, noise, self.recon)
                made = (weight * (error + kl)).sum()
                for optimizer, value in ((solver, loss), (maker, made)):
                    optimizer.zero_grad()
                    value.backward()
                    optimizer.step()
                sums += torch.stack([loss.detach().cpu(), made.detach().cpu()])
        if not torch.isfinite(sums).all():
            raise FloatingPointError(f"{self.label}: the loss is not finite in task {t}")
        self.net.eval()
        solved, made_ = (sums / self.size.iterations).tolist()
        return [{"epoch": 0.0, "train_loss": solved, "generator_loss": made_}]

    def end_task(self, data: ImageData) -> None:
        """Keep solver and generator as the previous ones."""
        self.previous = (frozen_copy(self.net), frozen_copy(self.generator))

    def state_dict(self) -> State:
        """Return the previous solver and generator."""
        if self.previous is None:
            return {}
        solver, generator = map(model_state, self.previous)
        return prefixed("solver", solver) | prefixed("generator", generator)


def check_generator(options: Strategy) -> None:
    """Refuse sizes below 1 and a step size that is not above 0.

    Raises:
        InputError: naming the first.
    """
    given = {name: value for name, value in options.options().items() if value is not None}
    for name in ("hidden", "latent", "iterations", "batch_size"):
        if given.get(name, 1) < 1:
            raise InputError(f"{name} is {given[name]!r}; allowed: at least 1")
    rate = given.get("lr", 1.0)
    if not rate > 0:
        raise InputError(f"lr is {rate!r}; allowed: a number above 0")
