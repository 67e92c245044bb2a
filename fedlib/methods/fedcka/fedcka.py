"""FedCKA: clients keep the layers whose representations left the global model's (Verhoog et al. 2026).

One round: clients train from their own models; layers are scored by CKA between the trained model and the
global one of the round's start, on a few of the client's training inputs; the least alike become personal; the
server averages each layer over the clients that share it; personal layers stay as they are. ``FedAvg`` does all
of this once it knows the masks.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args
from weakref import WeakKeyDictionary

import numpy as np
import torch

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.federation import masks as personal
from fedlib.federation.model_state import FlatModel
from fedlib.federation.tasks import Task
from fedlib.methods.fedcka.activations import called_modules
from fedlib.methods.fedcka.layers import Layer, blocks, partition
from fedlib.methods.fedcka.scores import Scoring, layer_scores
from fedlib.methods.fedcka.selection import Schedule, by_percentage, by_threshold
from fedlib.methods.federated.fedavg import FedAvg, Local

Mode = Literal["threshold", "percentage"]
KEPT = "fedcka/personal"  # name in the client's memory: which layers are personal, one bit a layer
_TWINS: WeakKeyDictionary[FlatModel, tuple[torch.nn.Module, tuple[Layer, ...]]] = WeakKeyDictionary()
"""For each model that clients train in turn a second one, for the global weights, and its layers. Made anew for
each client they would take a tenth of the scoring."""


@dataclass(frozen=True)
class FedCKA(FedAvg):
    """CKA-based layer personalisation.

    Attributes:
        mode: ``threshold``: layers with s_l < tau, chosen anew in each round; ``percentage``: lowest scores first
            until a share rho of the parameters, and never shared again.
        tau: threshold, 0 to 1; 0 is FedAvg, bit for bit.
        rho: share of the parameters, 0 to 1; 0 is FedAvg, bit for bit.
        schedule: of the percentage mode, see ``selection.by_percentage``.
        ramp_rounds: rounds over which ``incremental`` reaches rho.
        warmup_rounds: first rounds that are plain FedAvg; None takes 1 for the threshold (it makes a trained
            common reference) and a quarter of ``total_rounds`` for the percentage, as in the authors' public code.
        inputs: m, number of training inputs that layers are scored on; a smaller client uses all it has.
        inputs_vary: draw other inputs in each round, or the same in all.
        scoring: how layers are compared.
        exact_limits: at rho = 1 or tau = 1 layers without a score become personal too.
        blocks: modules that count as one layer each, kept or shared as a whole and scored by their output (one
            that is never called on its own has no score); see ``layers.blocks``. Without any, a layer is a module
            that owns parameters.
    """

    name: ClassVar[str] = "fedcka"

    mode: Mode = "threshold"
    tau: float = 0.5
    rho: float = 0.4
    schedule: Schedule = "incremental"
    ramp_rounds: int = 20
    warmup_rounds: int | None = None
    inputs: int = 10
    inputs_vary: bool = True
    scoring: Scoring = field(default_factory=Scoring)
    exact_limits: bool = False
    blocks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, ok, allowed in (
            ("mode", self.mode in get_args(Mode), ", ".join(get_args(Mode))),
            ("tau", 0 <= self.tau <= 1, "0 to 1"),
            ("rho", 0 <= self.rho <= 1, "0 to 1"),
            ("schedule", self.schedule in get_args(Schedule), ", ".join(get_args(Schedule))),
            ("ramp_rounds", self.ramp_rounds >= 1, "at least 1"),
            ("warmup_rounds", self.warmup_rounds is None or self.warmup_rounds >= 0, "at least 0, or None"),
            ("inputs", self.inputs >= 1, "at least 1"),
        ):
            if not ok:
                raise InputError(f"{name} is {getattr(self, name)!r}; allowed: {allowed}")

    @property
    def warmup(self) -> int:
        """Number of first rounds without masks."""
        if self.warmup_rounds is not None:
            return self.warmup_rounds
        return 1 if self.mode == "threshold" else self.total_rounds // 4

    def masks(self, task: Task, local: Local) -> personal.Masks:
        """Score the layers and return the personal ones' tensors; the choice and the scores go to the log.

        Raises:
            InputError: ``blocks`` that do not hold every parameter once.
        """
        if self.blocks:
            blocks(local.model.module, self.blocks)  # before rounds of warm-up, not after them
        if local.round <= self.warmup or not len(local.data):
            return super().masks(task, local)
        inputs = self._inputs(local)

        def forward(model: torch.nn.Module, rows: torch.Tensor) -> Any:
            return task.predict(model, local.data.batch(rows))

        if local.model not in _TWINS:
            reference = copy.deepcopy(local.model.module)
            called = called_modules(reference, lambda model: forward(model, inputs[0]))
            _TWINS[local.model] = reference, partition(reference, called)
        reference, layers = _TWINS[local.model]
        if self.blocks:
            layers = blocks(reference, self.blocks)
        reference.load_state_dict(local.broadcast.weights)
        scores = layer_scores(
            reference, local.model.module, layers, inputs, forward, self.scoring,
            seeds.integer(local.seed, "cka", local.round, local.client), join=torch.cat,
        )  # fmt: skip
        chosen = self.choose(layers, scores, local)
        local.memory[KEPT] = torch.tensor([layer.name in chosen for layer in layers])
        local.metrics |= {f"cka/{name}": score for name, score in scores.items()}
        local.metrics |= {f"personal/{layer.name}": float(layer.name in chosen) for layer in layers}
        count = sum(layer.parameters for layer in layers if layer.name in chosen)
        local.metrics["personal_share"] = count / sum(layer.parameters for layer in layers)
        return super().masks(task, local) | {
            name: torch.tensor(True) for layer in layers if layer.name in chosen for name in layer.tensors
        }

    def choose(self, layers: tuple[Layer, ...], scores: dict[str, float], local: Local) -> set[str]:
        """Return the names of the layers that become personal."""
        if self.mode == "threshold":
            chosen = by_threshold(layers, scores, self.tau)
            if self.exact_limits and self.tau == 1:
                chosen |= {layer.name for layer in layers if layer.name not in scores}
            return chosen
        before = local.memory.get(KEPT)
        previous = (
            set()
            if before is None
            else {layer.name for layer, kept in zip(layers, before.tolist(), strict=True) if kept}
        )
        return by_percentage(
            layers, scores, previous, self.rho,
            schedule=self.schedule, step=max(self.rho, 1e-12) / self.ramp_rounds,
            first=local.round == self.warmup + 1, exact_limits=self.exact_limits,
        )  # fmt: skip

    def _inputs(self, local: Local) -> list[torch.Tensor]:
        """Return the indices (1,) of the training inputs that layers are scored on."""
        when = local.round if self.inputs_vary else 0
        draw = seeds.rng(local.seed, "cka-inputs", when, local.client)
        count = min(self.inputs, len(local.data))
        chosen = draw.choice(len(local.data), size=count, replace=False)
        return list(torch.from_numpy(chosen.astype(np.int64)).split(1))
