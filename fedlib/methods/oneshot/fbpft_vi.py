"""FBPFT-VI (Orang et al., MedEurIPS 2025): diagonal variational inference on the features of a frozen encoder.

Only an abstract is public. It is VCL-FPFT with a frozen shared space, Gaussians fitted to the features, a cosine
head and a single task, and is run as such. Numbers that the abstract leaves open are those that the README of the
VCL-FPFT code gives for this variant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib.features.gaussian import SMALLEST_NORM
from fedlib.federation.ledger import Ledger
from fedlib.methods.oneshot.base import Result
from fedlib.methods.vcl.continual import run_tasks
from fedlib.methods.vcl.head import GrowingHead
from fedlib.methods.vcl.inputs import Labelled
from fedlib.methods.vcl.pipeline import Encoders, client_gaussians, train_clients
from fedlib.methods.vcl.presets import Options, preset
from fedlib.methods.vcl.server import aggregate


def fbpft_options(**changes: Any) -> Options:
    """Return the options of VCL-FPFT that make it FBPFT-VI, with changes.

    Raises:
        InputError: an unknown option, or values that do not fit.
    """
    fixed: dict[str, Any] = {
        "objective": "ce",  # with nothing to train: clients only embed
        "shared_space": "frozen",
        "source": "feature_vi",
        "beta": 0.1,
        "synthetic_per_class": 8000,
        "head": "cosine",
        "head_scale": 14.0,
        "head_epochs": 30,
        "head_lr": 1e-3,
        "footnote": "off",
    }
    return preset("paper", **(fixed | changes))


def small_options() -> Options:
    """Return the budget for small images on a CPU."""
    return fbpft_options(synthetic_per_class=200, head_epochs=20)


class UnitClassifier(nn.Module):
    """A frozen encoder, features of length 1, and a head on them.

    Args:
        encoder: maps images to (B, d).
        head: its rows are the classes 0 ... C - 1 in order.
    """

    def __init__(self, encoder: nn.Module, head: GrowingHead) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (B, C) of images (B, channels, s, s)."""
        logits: Tensor = self.head(functional.normalize(self.encoder(x), dim=1, eps=SMALLEST_NORM))
        return logits


def fbpft_vi(
    data: Mapping[int, Labelled] | Sequence[Labelled],
    encoders: Encoders,
    num_classes: int,
    options: Options,
    seed: int,
) -> Result:
    """Run FBPFT-VI: one upload of diagonal Gaussians, one head.

    Args:
        data: of each client, images or features of the frozen encoder (then ``encoders`` gives ``nn.Identity``).
        encoders: from a client id to the common encoder.
        num_classes: C.
        options: of :func:`fbpft_options`.
        seed: of the experiment.

    Raises:
        InputError: no client with a sample, or options that do not fit.
    """
    by_client = dict(data) if isinstance(data, Mapping) else dict(enumerate(data))
    ledger = Ledger(most_uplinks=1)
    clients = train_clients(by_client, encoders, options, seed, num_classes)
    gaussians = client_gaussians(clients, by_client, encoders, options, seed, ledger)
    run = run_tasks(aggregate(gaussians, num_classes, options), [range(num_classes)], options, seed)
    first = min(clients)
    encoder = encoders(first)
    encoder.load_state_dict(clients[first].encoder)
    head = run.head(0)
    device = next((p.device for p in encoder.parameters()), torch.device("cpu"))
    record = {"clients": len(by_client), "num_classes": num_classes} | dataclasses.asdict(options)
    model = UnitClassifier(encoder, head).to(device).eval()
    return Result("fbpft_vi", model, [{"task": 0.0, "train_loss": run.losses[0]}], ledger, record)
