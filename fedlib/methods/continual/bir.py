"""Brain-inspired replay (van de Ven et al., Nature Communications 2020): features are replayed, not images.

One network behind a fixed front end classifies and generates. Its four parts, each of which can be switched off:

    replay through feedback   classifier and variational autoencoder share the encoder
    conditional replay        z has a learnt Gaussian prior for each class
    gating                    each class uses a fixed random part of the decoder's units
    distillation              replayed features carry the previous network's softened outputs
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib import seeds
from fedlib.errors import InputError, choose
from fedlib.federation.model_state import State, model_state
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual.gr import check_generator, kl_to_standard, layers, replay_loss
from fedlib.methods.continual.lwf import check_temperature
from fedlib.methods.continual.strategy import Context, Strategy, embedded, frozen_copy
from fedlib.methods.vcl.head import GrowingHead


def log_normal(z: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return log N(z; mean, diag exp log_variance), summed over the last dimension."""
    squares = (z - mean).square() / log_variance.exp()
    return -0.5 * (squares + log_variance + math.log(2 * math.pi)).sum(-1)


class FeedbackNet(nn.Module):
    """Encoder, classifier and decoder of features u.

        h = encoder(u);   logits = classifier(h);   z ~ N(mu(h), sigma(h)^2);   u' = decoder(z)

    Args:
        size: length d of u.
        hidden: units of the two hidden layers on either side.
        latent: length of z.
        num_classes: C, of all tasks.
        closed: share of the decoder's hidden units that are off for a class.
        generator: draws which.
    """

    gates: Tensor

    def __init__(
        self,
        size: int,
        hidden: int,
        latent: int,
        num_classes: int,
        closed: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.encoder = layers((size, hidden, hidden))
        self.classifier = GrowingHead(hidden)
        self.moments = nn.Linear(hidden, 2 * latent)
        self.decoder = nn.ModuleList([nn.Linear(latent, hidden), nn.Linear(hidden, hidden)])
        self.out = nn.Linear(hidden, size)
        self.prior_mean = nn.Parameter(torch.randn(num_classes, latent, generator=generator))
        self.prior_log_variance = nn.Parameter(torch.zeros(num_classes, latent))
        off = round(closed * hidden)
        gates = torch.ones(2, num_classes, hidden)
        for layer in gates:
            for row in layer:
                row[torch.randperm(hidden, generator=generator)[:off]] = 0
        self.register_buffer("gates", gates)

    def forward(self, u: Tensor) -> Tensor:
        """Return the logits (B, rows) of features (B, d)."""
        logits: Tensor = self.classifier(self.encoder(u))
        return logits

    def decode(self, z: Tensor, p: Tensor) -> Tensor:
        """Return features (B, d) of z (B, latent) with the gates of classes of probabilities p (B, k), k <= C."""
        for layer, gates in zip(self.decoder, self.gates):
            # The pre-activation of each unit is multiplied by the expected gate.
            z = (layer(z) * (p @ gates[: p.shape[1]])).relu()
        out: Tensor = self.out(z)
        return out

    def losses(
        self, u: Tensor, p: Tensor, generator: torch.Generator, prior: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return reconstruction error (mean square), variational term / d, and logits.

        Args:
            u: features (B, d).
            p: class probabilities (B, k); of hard labels, zeros and ones.
            generator: draws z.
            prior: ``class`` one-sample estimate log q(z|u) - log sum_c p_c N(z; mu_c, diag s_c^2); ``standard``
                KL(q || N(0, I)).

        Returns:
            () , () and (B, rows); the first two are means over the batch.
        """
        h = self.encoder(u)
        mean, log_variance = self.moments(h).chunk(2, dim=1)
        noise = torch.randn(mean.shape, generator=generator).to(mean.device)
        z = mean + (log_variance / 2).exp() * noise
        if prior == "standard":
            variational = kl_to_standard(mean, log_variance)
        else:
            k = p.shape[1]
            modes = log_normal(z[:, None], self.prior_mean[:k], self.prior_log_variance[:k])  # (B, k)
            possible = torch.where(p > 0, p, 1).log().masked_fill(p <= 0, -torch.inf)
            variational = log_normal(z, mean, log_variance) - torch.logsumexp(possible + modes, dim=1)
        recon = (self.decode(z, p) - u).square().mean()
        return recon, variational.mean() / u.shape[1], self.classifier(h)

    def sample(
        self, count: int, rows: Sequence[int], generator: torch.Generator, prior: str
    ) -> tuple[Tensor, Tensor]:
        """Return generated features (count, d) and the classes (count,) that they were made for.

        Args:
            count: number of features.
            rows: classes, as rows of the classifier, that are equally likely.
            generator: draws classes and z.
            prior: ``class`` or ``standard``.
        """
        made_for = torch.tensor(rows)[torch.randint(len(rows), (count,), generator=generator)]
        device = self.prior_mean.device
        z = torch.randn(count, self.prior_mean.shape[1], generator=generator).to(device)
        made_for = made_for.to(device)
        if prior == "class":
            z = self.prior_mean[made_for] + (self.prior_log_variance[made_for] / 2).exp() * z
        gates = functional.one_hot(made_for, len(self.prior_mean)).to(z.dtype)
        return self.decode(z, gates), made_for


@dataclass(kw_only=True)
class BIR(Strategy):
    """Each batch of the t-th task has the loss (1/t) L(current) + (1 - 1/t) L(replay).

        L = reconstruction + variational term / d + prediction

    Attributes:
        prior: ``class`` conditional replay, or ``standard`` N(0, I).
        dg_prop: share of the decoder's hidden units that are off for a class; 0 for no gating.
        replay_targets: ``soft`` distillation, or ``hard`` the previous network's most likely class.
        temperature: of the distillation.
        front_end: ``given`` features of the encoder as it comes (pretrained), or ``first_task`` trained on the
            first task as the suite has it; fixed ever after.
        hidden: units of the hidden layers.
        latent: length of z.
        iterations: of a task.
        batch_size: current features, and as many replayed ones.
        lr: of Adam.
    """

    label: ClassVar[str] = "BIR"
    category: ClassVar[str] = "G"
    stores: ClassVar[str] = "previous network, priors, gates"
    all_rows: ClassVar[bool] = True

    prior: Literal["class", "standard"] = "class"
    dg_prop: float = 0.7
    replay_targets: Literal["soft", "hard"] = "soft"
    temperature: float = 2.0
    front_end: Literal["given", "first_task"] = "given"
    hidden: int = 2000
    latent: int = 100
    iterations: int = 5000
    batch_size: int = 256
    lr: float = 1e-4

    feedback: FeedbackNet = field(init=False, repr=False)
    previous: FeedbackNet | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        choose("prior", self.prior, ("class", "standard"))
        choose("replay_targets", self.replay_targets, ("soft", "hard"))
        choose("front_end", self.front_end, ("given", "first_task"))
        check_temperature(self.temperature)
        check_generator(self)
        if not 0 <= self.dg_prop < 1:
            raise InputError(f"dg_prop is {self.dg_prop!r}; allowed: at least 0 and below 1")

    @classmethod
    def small(cls) -> Self:
        """Return the budget for small images; the front end learns on the first task."""
        return cls(front_end="first_task", hidden=256, latent=16, iterations=300, batch_size=32, lr=1e-3)

    def network(self) -> list[nn.Module]:
        """Return front end and network."""
        return [self.net.encoder, self.feedback]

    def start(self, context: Context) -> None:
        """Begin with a new network behind the front end."""
        super().start(context)
        size, classes = self.net.head.weight.shape[1], sum(map(len, context.tasks))
        gates = seeds.torch_generator(context.seed, "gates")
        with seeds.torch_global(context.seed, "feedback"):
            self.feedback = FeedbackNet(size, self.hidden, self.latent, classes, self.dg_prop, gates)
        self.feedback.to(self.net.head.weight.device)
        self.previous = None

    def begin_task(self, data: ImageData) -> None:
        """Add the task's rows to the classifier."""
        seed, t = self.place
        classes = self.context.tasks[t]
        rows = torch.rand(len(classes), self.hidden, generator=seeds.torch_generator(seed, "classifier", t))
        self.feedback.classifier.expand(classes, (2 * rows - 1) / math.sqrt(self.hidden))

    def learn(self, data: ImageData, validation: ImageData | None) -> list[dict[str, float]]:
        """Train the network on features for a fixed number of steps."""
        history: list[dict[str, float]] = []
        seed, t = self.place
        if t == 0 and self.front_end == "first_task":
            history = super().learn(data, validation)
        self.net.eval().requires_grad_(False)
        # The front end is fixed and sees the images as they are, so features are computed once.
        u = embedded(self.net, data)
        y = self.targets(torch.from_numpy(data.labels).to(u.device))
        optimizer = torch.optim.Adam(self.feedback.parameters(), self.lr, fused=True)
        order, noise = seeds.torch_generator(seed, "batches", "bir", t), self.context.generator("noise")
        share, names = 1 / (t + 1), ("recon", "variational", "prediction")
        sums = torch.zeros(3)
        queue: list[Tensor] = []
        self.feedback.train()
        for _ in range(self.iterations):
            queue = queue or list(torch.randperm(len(u), generator=order).split(self.batch_size))
            rows = queue.pop(0)
            p = functional.one_hot(y[rows], self.seen).to(u.dtype)
            recon, variational, logits = self.feedback.losses(u[rows], p, noise, self.prior)
            terms = [torch.stack([recon, variational, functional.cross_entropy(logits, y[rows])])]
            if self.previous is not None:
                terms.append(self.replay(noise))
                # (1/t) L(current) + (1 - 1/t) L(replay)
                terms = [share * terms[0], (1 - share) * terms[1]]
            parts = torch.stack(terms).sum(0)
            optimizer.zero_grad()
            parts.sum().backward()
            optimizer.step()
            sums += parts.detach().cpu()
        if not torch.isfinite(sums).all():
            raise FloatingPointError(f"{self.label}: the loss is not finite in task {t}")
        self.feedback.eval()
        row = {"epoch": float(len(history)), "train_loss": float(sums.sum()) / self.iterations}
        return [*history, row | dict(zip(names, (sums / self.iterations).tolist()))]

    def replay(self, noise: torch.Generator) -> Tensor:
        """Return reconstruction, variational term and prediction loss (3,) on replayed features."""
        assert self.previous is not None
        with torch.no_grad():
            u, _ = self.previous.sample(self.batch_size, range(self.old), noise, self.prior)
            old = self.previous(u)
        if self.replay_targets == "soft":
            p = functional.softmax(old / self.temperature, dim=1)
        else:
            p = functional.one_hot(old.argmax(1), self.old).to(u.dtype)
        recon, variational, logits = self.feedback.losses(u, p, noise, self.prior)
        return torch.stack(
            [recon, variational, replay_loss(logits, old, self.replay_targets, self.temperature)]
        )

    def end_task(self, data: ImageData) -> None:
        """Keep the network as the previous one."""
        self.previous = frozen_copy(self.feedback)

    def scores(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.feedback(self.net.features(x))
        return logits

    def state_dict(self) -> State:
        """Return the previous network, with its priors and gates."""
        return {} if self.previous is None else model_state(self.previous)
