"""What the settings of the FedCKA experiments say of a method, on images as on driving scenes."""

from __future__ import annotations

from typing import Any

from fedlib.experiments.settings import FedCKASettings
from fedlib.methods.fedcka.fedcka import FedCKA
from fedlib.methods.federated.fedavg import FedAvg
from fedlib.methods.federated.fedmc import FedMC
from fedlib.methods.federated.fedselect import FedSelect


def schedule_options(settings: FedCKASettings, kind: type[FedAvg]) -> dict[str, Any]:
    """Return the options of a method that decide when and how much it personalises, and its step size's fall.

    FedSelect and FedMC end at FedCKA's share rho, and take the same share of it in a round.

    Args:
        settings: of the experiment.
        kind: class of the method.
    """
    own: dict[str, Any] = {"total_rounds": settings.rounds, "lr_floor": settings.lr_floor}
    if kind is FedCKA:
        own |= {"tau": settings.tau, "rho": settings.rho, "ramp_rounds": settings.ramp_rounds}
        own |= {"inputs": settings.inputs, "warmup_rounds": settings.warmup_rounds}
    if kind in (FedSelect, FedMC):
        own |= {"final": settings.rho, "select": settings.rho / settings.ramp_rounds}
        own |= {"warmup_rounds": settings.warmup_rounds}
    return own
