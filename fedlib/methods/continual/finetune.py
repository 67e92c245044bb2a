"""Fine-tuning: cross-entropy on the present task, nothing against forgetting. The lower bound (LB)."""

from __future__ import annotations

from dataclasses import dataclass

from fedlib.methods.continual.strategy import Strategy


@dataclass(kw_only=True)
class Finetune(Strategy):
    """No options."""
