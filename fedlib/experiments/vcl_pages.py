"""The sets of rows that the pages on VCL-FPFT compare, and their results in the columns of the register."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from fedlib.experiments.settings import VCLSettings
from fedlib.experiments.study import Study
from fedlib.experiments.vcl import Row
from fedlib.methods.vcl.presets import PRESETS

PRESET_ROWS: dict[str, Row] = {"vcl": ("paper", {}), "vcl_code": ("code", {})}
"""The method as the paper describes it and as its code has it."""

AS_PAPER = "as the paper"
ABLATIONS: dict[str, Row] = {
    AS_PAPER: ("paper", {}),
    "no distillation": ("paper", {"kd_weight": 0.0}),
    "five times the distillation": ("paper", {"kd_weight": 1.0}),
    "replay for distillation only": ("paper", {"replay_ce": False}),
    "no replay": ("paper", {"replay_per_class": 0}),
    "one matched Gaussian": ("paper", {"aggregation": "matched"}),
    "averaged parameters": ("paper", {"aggregation": "averaged"}),
    "moments of the features": ("paper", {"source": "moments"}),
    "no shared space": ("paper", {"shared_space": "local"}),
    "frozen encoder, moments": (
        "paper",
        {"objective": "ce", "shared_space": "frozen", "source": "moments"},
    ),
}
"""One change to the paper's method each."""

_CONDITIONS: dict[str, dict[str, Any]] = {
    AS_PAPER: {"replay": True, "kd_weight": 0.2, "aggregation": "mixture"},
    "no distillation": {"replay": True, "kd_weight": 0.0, "aggregation": "mixture"},
    "five times the distillation": {"replay": True, "kd_weight": 1.0, "aggregation": "mixture"},
    "no replay": {"replay": False, "kd_weight": 0.2, "aggregation": "mixture"},
    "one matched Gaussian": {"replay": True, "kd_weight": 0.2, "aggregation": "single"},
    "averaged parameters": {"replay": True, "kd_weight": 0.2, "aggregation": "averaged"},
}

_STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("moments for proxies (3)", ("source",)),
    ("mean encoder, second uplink (6)", ("shared_space",)),
    ("cross-entropy (1, 2)", ("objective",)),
    ("BatchNorm statistics move (8)", ("batch_norm",)),
    ("balanced sampler (18)", ("sampler",)),
    ("moments of a resample (5)", ("resampled", "single")),
    ("one total covariance (4)", ("covariance",)),
    ("ten times the features (9)", ("synthetic_per_class",)),
    ("one head with all classes (11, 12)", ("head_scope", "head_init", "optimizer_state")),
    ("no proxies at the server (13)", ("footnote", "replay_weighting")),
)


def ladder(settings: VCLSettings) -> dict[str, Row]:
    """Return the rows that lead from the paper to the code, each adding one step's differences to the last.

    The numbers in brackets are those of the page's table of differences. The last row has all options of the
    preset ``code`` that its features depend on.
    """
    changes: dict[str, Any] = {}
    found: dict[str, Row] = {"paper": ("paper", {})}
    code = PRESETS["code"] | dict(settings.code)
    for name, options in _STEPS:
        changes = changes | {option: code[option] for option in options}
        found[name] = ("paper", changes)
    return found


def conditions(study: Study) -> pd.DataFrame:
    """Return the class-incremental results of the ablations with columns replay, kd_weight and aggregation.

    Rows that change anything else are left out.
    """
    frame = _class_incremental(study)
    parts = [
        frame[frame["row"] == row].assign(**labels).drop(columns="row") for row, labels in _CONDITIONS.items()
    ]
    return pd.concat(parts, ignore_index=True)


def by_method(*studies: Study, stages: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Return the class-incremental results of the rows, the row's name in the column ``method``.

    Args:
        studies: of VCL-FPFT and of the one-shot methods; of the former the continual stage counts.
        stages: further methods: the head that was trained on all classes at once, by the row that has it.
    """
    frame = pd.concat([study.metrics for study in studies], ignore_index=True)
    continual = set(frame.loc[frame["stage"] == "tasks", "row"])
    joint = frame["stage"] == "joint"
    further = [
        frame[(frame["row"] == row) & (joint | (frame["stage"] == "messages"))].assign(row=name)
        for name, row in (stages or {}).items()
    ]
    kept = frame[~(joint & frame["row"].isin(continual))]
    kept = pd.concat([kept, *further], ignore_index=True)
    kept = kept[kept["scope"].isin(["cil", "none"]) & (kept["task"] < 0)]
    return kept.rename(columns={"row": "method"}).drop(columns=["stage", "scope", "after", "task"])


def _class_incremental(study: Study) -> pd.DataFrame:
    frame = study.metrics
    kept = frame[(frame["stage"] == "tasks") & (frame["scope"] == "cil") & (frame["task"] < 0)]
    return kept.drop(columns=["stage", "after", "task"])
