"""Experiments of the MPT part (Jang et al. 2026): the door that notebooks use.

``preliminary`` is section III; ``tracking`` follows the rare class with every method on one trajectory;
``over_tasks``, ``over_backbones`` and ``over_regimes`` repeat it; ``reserve_or_train`` compares two ways to use
the samples that remain; ``timing`` and ``server_scaling`` measure seconds. ``headline`` and ``averaged`` make
the tables that figures and verdicts take.
"""

from fedlib.experiments.mpt_preliminary import preliminary
from fedlib.experiments.mpt_tracking import ABLATION, HEADLINE, averaged, headline, tracking

__all__ = ["ABLATION", "HEADLINE", "averaged", "headline", "preliminary", "tracking"]
