"""SCAFFOLD and FedDyn against closed forms: one weight, losses that are linear or quadratic in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from fedlib.federation.messages import Broadcast, Update
from fedlib.federation.method import Server
from fedlib.federation.model_state import FlatModel, State
from fedlib.methods.federated.fedavg import FedAvg, Local
from fedlib.methods.federated.feddyn import FedDyn
from fedlib.methods.federated.scaffold import Scaffold

STEPS, RATE = 5, 0.05
SGD_ONLY: dict[str, Any] = {
    "lr": RATE, "momentum": 0.0, "weight_decay": 0.0, "batch_size": 8, "local_epochs": STEPS,
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """Eight equal samples whose loss is ``slope w + curvature (w - target)^2``."""

    slope: float = 0.0
    curvature: float = 0.0
    target: float = 0.0

    def __len__(self) -> int:
        return 8

    def batch(self, indices: torch.Tensor) -> Part:
        return self


class Line:
    """The task: one weight."""

    def build_model(self, seed: int) -> nn.Module:
        return nn.Linear(1, 1, bias=False)

    def loss(self, model: nn.Linear, part: Part) -> torch.Tensor:
        w = model.weight.squeeze()
        return part.slope * w + part.curvature * (w - part.target) ** 2


def update(
    method: FedAvg, part: Part, start: float, memory: State, statistics: State, client: int = 0
) -> Update:
    message = Broadcast(1, {"weight": torch.full((1, 1), start)}, statistics)
    model = FlatModel(Line().build_model(0))
    return method.client_update(Line(), model, client, part, message, memory, 0)  # type: ignore[arg-type]


def value(state: State) -> float:
    return float(state["weight"])


def test_after_one_round_from_zero_a_control_is_the_mean_gradient_of_the_round() -> None:
    found = update(Scaffold(**SGD_ONLY), Part(curvature=1.5, target=3.0), 1.0, {}, {})
    moved = 1.0 - value(found.weights)
    assert float(found.memory["control/weight"]) == pytest.approx(moved / (STEPS * RATE), rel=1e-5)
    sent = found.statistics["control/weight"]
    assert float(sent) == pytest.approx(moved / (STEPS * RATE), rel=1e-5), "the change, from zero"


def test_a_server_control_moves_a_client_by_itself_times_steps_and_rate() -> None:
    part, control = Part(slope=0.7), torch.full((1, 1), 10.0)
    plain = update(Scaffold(**SGD_ONLY), part, 1.0, {}, {})
    led = update(Scaffold(**SGD_ONLY), part, 1.0, {}, {"control/weight": control})
    own = update(Scaffold(**SGD_ONLY), part, 1.0, {"control/weight": control}, {})
    both = update(Scaffold(**SGD_ONLY), part, 1.0, {"control/weight": control}, {"control/weight": control})
    assert value(led.weights) - value(plain.weights) == pytest.approx(-10 * STEPS * RATE, rel=1e-5)
    assert value(own.weights) - value(plain.weights) == pytest.approx(10 * STEPS * RATE, rel=1e-5)
    assert value(both.weights) == pytest.approx(value(plain.weights), rel=1e-6)


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_feddyn_descends_the_gradient_of_its_local_objective(alpha: float) -> None:
    seen: list[tuple[float, float]] = []

    class Watched(FedDyn):
        def step(self, local: Local, optimizer: Any) -> None:
            seen.append((float(local.model.values), float(local.model.grad)))
            super().step(local, optimizer)

    part, own = Part(curvature=1.5, target=3.0), 0.4
    method = Watched(**SGD_ONLY, alpha=alpha, exempt_norms=False)
    update(method, part, 1.0, {"dyn/weight": torch.full((1, 1), own)}, {})
    assert len(seen) == STEPS
    for w, gradient in seen:
        assert gradient == pytest.approx(3.0 * (w - 3.0) - own + alpha * (w - 1.0), abs=1e-5)


def test_feddyn_stands_still_at_the_joint_optimum() -> None:
    parts = [Part(curvature=1.0, target=1.0), Part(curvature=4.0, target=-3.0)]
    optimum = (1.0 * 1.0 + 4.0 * -3.0) / 5.0
    memories: list[State] = [
        {"dyn/weight": torch.full((1, 1), 2 * part.curvature * (optimum - part.target))} for part in parts
    ]
    method = FedDyn(**SGD_ONLY, alpha=0.5, exempt_norms=False)
    server = Server({"weight": torch.full((1, 1), optimum)})
    updates = [update(method, part, optimum, memories[k], {}, k) for k, part in enumerate(parts)]
    server = method.aggregate(server, updates)
    assert value(server.weights) == pytest.approx(optimum, abs=1e-6)
    for k, found in enumerate(updates):
        assert float(found.memory["dyn/weight"]) == pytest.approx(float(memories[k]["dyn/weight"]), abs=1e-5)
    alone = update(FedAvg(**SGD_ONLY), parts[0], optimum, {}, {})
    assert abs(value(alone.weights) - optimum) > 0.5, "without the vectors a client leaves it"
