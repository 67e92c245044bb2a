"""E-FedISCA (Kang et al., Medical Image Analysis 105:103714, 2025), reconstructed from its abstract.

No code is public and the abstract gives no numbers. It says: images between noise and realism come from mixing
synthesised images with diverse structured noise, instead of from the steps of a synthesis; synthesised images
are used again; clients' BatchNorm is adapted to noise; distillation with both teachers. The kinds of noise, the
grid of mixing weights and the schedule are ours, so its scores are scores of this reconstruction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib import seeds
from fedlib.methods.oneshot.base import Problem, Result, at_least, budget, device_of, uploaded
from fedlib.methods.oneshot.ensemble import Ensemble
from fedlib.methods.oneshot.fedisca import FedISCA, two_teachers_loss
from fedlib.methods.oneshot.inversion import Inversion, invert
from fedlib.methods.oneshot.local_training import step_decay

NOTE = "reconstructed from the abstract"
COARSE_SIDES = (4, 7, 14)  # pixels, of the noise that is enlarged


@dataclass(frozen=True)
class EFedISCA(FedISCA):
    """Settings; what the abstract leaves open is as in FedISCA.

    Attributes:
        refresh: epochs between two syntheses.
        levels: J, number of mixing weights a = 0, 1/J, ..., (J - 1)/J in an epoch.
    """

    refresh: int = 10
    levels: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, {"refresh": 1, "levels": 1})

    @classmethod
    def small(cls) -> EFedISCA:
        """Return the budget for small images on a CPU: a pool of 128 images and ten levels."""
        return cls(inversion=Inversion(steps=50, batch_size=128), epochs=20, lr=0.02, levels=10)


def structured_noise(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return noise of six kinds in turn, each image with mean 0 and standard deviation 1.

    White; coarse of 4, 7 and 14 pixels, enlarged; with a spectrum of 1/f; a constant for each channel plus white.

    Args:
        shape: (B, channels, s, s).
        generator: of the draws; each kind takes as many, whatever the number of images.
    """
    batch, channels, side, _ = shape

    def white(size: int) -> Tensor:
        return torch.randn(batch, channels, size, size, generator=generator)

    kinds = [white(side)]
    for coarse in COARSE_SIDES:
        kinds.append(
            functional.interpolate(white(coarse), (side, side), mode="bilinear", align_corners=False)
        )
    frequency = torch.fft.fftfreq(side)
    radius = (frequency[:, None].square() + frequency.square()).sqrt()
    radius[0, 0] = 1 / side  # the mean goes when the image is standardised
    kinds.append(torch.fft.ifft2(torch.fft.fft2(white(side)) / radius).real)
    kinds.append(white(1) + white(side))
    which = torch.arange(batch) % len(kinds)
    noise = torch.stack(kinds)[which, torch.arange(batch)]
    noise = noise - noise.mean((1, 2, 3), keepdim=True)
    return noise / noise.std((1, 2, 3), correction=0, keepdim=True).clamp_min(1e-12)


def e_fedisca(
    models: Sequence[nn.Module], student: nn.Module, problem: Problem, settings: EFedISCA, seed: int
) -> Result:
    """Distil the clients' models into ``student`` (in place) without data; the last epoch counts.

    Args:
        models: of each client, with BatchNorm; they stay as they are.
        student: the global model to train.
        problem: classes and shapes.
        settings: see :class:`EFedISCA`.
        seed: of the experiment.

    Raises:
        InputError: no client.
    """
    device = device_of(student)
    ledger = uploaded(models)
    ensemble = Ensemble(models, device)
    adapted = ensemble.adapted()
    optimizer = settings.optimizer(student)
    schedule = step_decay(optimizer, settings.epochs)
    history = []
    images = torch.empty(0)
    with seeds.torch_global(seed, "e-fedisca dropout"):
        for epoch in range(settings.epochs):
            random = seeds.torch_generator(seed, "e-fedisca", epoch)
            if epoch % settings.refresh == 0:
                images = deque(invert(ensemble, problem, settings.inversion, random, device), maxlen=1)[0]
            noise = structured_noise(images.shape, random).to(device)
            adapted.adapt(noise)
            student.train()
            total = 0.0
            for level in range(settings.levels):
                alpha = level / settings.levels
                # x = a x_syn + (1 - a) nu
                x = alpha * images + (1 - alpha) * noise
                with torch.no_grad():
                    real, noisy = ensemble(x), adapted(x)
                loss = two_teachers_loss(student(x), real, noisy, alpha, settings.temperature)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += float(loss.detach())
            schedule.step()
            history.append({"epoch": float(epoch), "student_loss": total / settings.levels})
    return Result("e_fedisca", student.eval(), history, ledger, budget(problem, settings, len(models)), NOTE)
