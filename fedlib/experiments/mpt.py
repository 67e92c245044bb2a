"""Experiments of the MPT part (Jang et al. 2026): the door that notebooks use.

``preliminary`` is section III. ``tracking`` follows the rare class with every method on one trajectory of
backbones;
``over_tasks``, ``over_backbones``, ``over_regimes`` and ``reserve_or_train`` repeat it under other conditions,
``several_departures`` lets several vehicles leave.
``headline``, ``averaged``, ``better_variant``, ``by_readout``, ``error_and_f1``, ``gain_and_ratio``,
``demands``, ``constant_answers``, ``linear_on_pixels`` and ``in_one_place`` make the tables that figures and
verdicts take.
``timing``, ``server_scaling`` and ``drift_bench`` need no trajectory of their own.
"""

from fedlib.experiments.mpt_departures import several_departures
from fedlib.experiments.mpt_pages import (
    better_variant,
    by_readout,
    demands,
    drift_bench,
    error_and_f1,
    gain_and_ratio,
    in_one_place,
    linear_on_pixels,
    over_backbones,
    over_regimes,
    over_tasks,
    reserve_or_train,
)
from fedlib.experiments.mpt_preliminary import preliminary
from fedlib.experiments.mpt_scenario import constant_answers
from fedlib.experiments.mpt_seconds import server_scaling, timing
from fedlib.experiments.mpt_tracking import ABLATION, HEADLINE, LITE, averaged, headline, tracking
from fedlib.methods.mpt.trackers import METHODS

__all__ = [
    "ABLATION",
    "HEADLINE",
    "LITE",
    "METHODS",
    "averaged",
    "better_variant",
    "by_readout",
    "constant_answers",
    "demands",
    "drift_bench",
    "error_and_f1",
    "gain_and_ratio",
    "headline",
    "in_one_place",
    "linear_on_pixels",
    "over_backbones",
    "over_regimes",
    "over_tasks",
    "preliminary",
    "reserve_or_train",
    "server_scaling",
    "several_departures",
    "timing",
    "tracking",
]
