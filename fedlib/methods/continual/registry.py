"""All methods by name."""

from __future__ import annotations

from typing import Any

from fedlib.errors import choose
from fedlib.methods.continual.bir import BIR
from fedlib.methods.continual.eeil import EEIL
from fedlib.methods.continual.eft import EFT
from fedlib.methods.continual.ewc import EWC
from fedlib.methods.continual.finetune import Finetune
from fedlib.methods.continual.gpm import GPM
from fedlib.methods.continual.gr import GR
from fedlib.methods.continual.icarl import ICaRL
from fedlib.methods.continual.joint import Joint
from fedlib.methods.continual.lwf import LwF
from fedlib.methods.continual.lwm import LwM
from fedlib.methods.continual.mas import MAS
from fedlib.methods.continual.muc_mas import MUCMAS
from fedlib.methods.continual.owm import OWM
from fedlib.methods.continual.rwalk import RWalk
from fedlib.methods.continual.si import SI
from fedlib.methods.continual.strategy import Strategy

METHODS: dict[str, type[Strategy]] = {
    "finetune": Finetune,
    "joint": Joint,
    "ewc": EWC,
    "mas": MAS,
    "si": SI,
    "rwalk": RWalk,
    "lwf": LwF,
    "lwm": LwM,
    "muc_mas": MUCMAS,
    "gpm": GPM,
    "owm": OWM,
    "eft": EFT,
    "icarl": ICaRL,
    "eeil": EEIL,
    "gr": GR,
    "bir": BIR,
}

CATEGORIES = {
    "B": "bound",
    "R": "regularisation",
    "E": "expansion",
    "replay": "replay of stored samples",
    "G": "generative replay",
}


def method(name: str, budget: str = "full", **options: Any) -> Strategy:
    """Return a method.

    Args:
        name: a key of ``METHODS``.
        budget: ``full`` the published defaults, or ``small`` the ones for small images on a CPU.
        options: values that differ from the budget's.

    Raises:
        InputError: unknown name or budget, an option that the method has not, or a value out of range.

    >>> method("ewc", "small", strength=10.0)
    EWC(strength=10.0, include_head=False, fisher='expected', samples=200, merge='average', a=0.5, gamma=1.0)
    """
    kind = METHODS[choose("method", name, METHODS)]
    defaults = (kind.small() if choose("budget", budget, ("full", "small")) == "small" else kind()).__dict__
    for option in options:
        choose(f"option of {name}", option, defaults)
    return kind(**{**defaults, **options})
