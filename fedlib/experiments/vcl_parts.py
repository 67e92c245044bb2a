"""Rows that change one part of VCL-FPFT at a time, and rows that lead from the paper to its public code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from fedlib.data.lossy_partition import LossySplit
from fedlib.errors import InputError, choose
from fedlib.experiments.settings import VCLSettings
from fedlib.experiments.study import Study
from fedlib.experiments.vcl import NO_TASK, Row
from fedlib.experiments.vcl_pages import continual
from fedlib.experiments.vcl_scene import Scene
from fedlib.methods.vcl.presets import PRESETS

SPACES: dict[str, Row] = {
    "anchors": ("paper", {}),
    "fixed anchors": ("paper", {"shared_space": "proxyset"}),
    "mean encoder": ("paper", {"shared_space": "avg", "batch_norm": "affine_frozen"}),
    "mean encoder, frozen BatchNorm": ("paper", {"shared_space": "avg"}),
    "none": ("paper", {"shared_space": "local"}),
    "none, tested with the mean": ("paper", {"shared_space": "local", "eval_encoder": "avg"}),
    "frozen random encoder": (
        "paper",
        {"objective": "ce", "shared_space": "frozen", "source": "moments"},
    ),
}
"""Ways to make the clients' features comparable.

The mean encoder has the code's BatchNorm, or the paper's, whose statistics stay those of the untrained encoder.
Clients of the last train nothing and send moments."""

CHANGES: dict[str, dict[str, Any]] = {
    "as the paper": {},
    "no distillation": {"kd_weight": 0.0},
    "five times the distillation": {"kd_weight": 1.0},
    "replay for distillation only": {"replay_ce": False},
    "no replay": {"replay_per_class": 0},
    "one matched Gaussian": {"aggregation": "matched"},
    "averaged parameters": {"aggregation": "averaged"},
    "no proxies at the server": {"footnote": "off"},
    "their Gaussians replayed": {"footnote": "replace"},
}
"""One change to the server each."""

SOURCES: dict[str, dict[str, Any]] = {
    "proxies": {},
    "moments of each class": {"source": "moments"},
    "one covariance in total": {"source": "moments", "covariance": "tied_total"},
    "normal-inverse-Wishart": {"source": "niw"},
    "diagonal inference": {"source": "feature_vi"},
    "diagonal inference of the code": {
        "source": "feature_vi",
        "vi_recipe": "code",
        "vi_steps": 800,
        "vi_lr": 1e-3,
    },
}
"""Where the class Gaussians that a client sends come from."""

_PLAIN: dict[str, Any] = {"replay": True, "kd_weight": 0.2, "aggregation": "mixture"}
_CONDITIONS: dict[str, dict[str, Any]] = {
    "as the paper": {},
    "no distillation": {"kd_weight": 0.0},
    "five times the distillation": {"kd_weight": 1.0},
    "no replay": {"replay": False},
    "one matched Gaussian": {"aggregation": "single"},
    "averaged parameters": {"aggregation": "averaged"},
}

_STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("moments for proxies (3)", ("source",)),
    ("mean encoder, second uplink (6)", ("shared_space",)),
    ("BatchNorm statistics move (8)", ("batch_norm",)),
    ("cross-entropy (1, 2)", ("objective",)),
    ("balanced sampler (18)", ("sampler",)),
    ("total covariance of a resample (4, 5)", ("covariance", "resampled", "single")),
    ("ten times the features (9)", ("synthetic_per_class",)),
    ("one head with all classes (11, 12)", ("head_scope", "head_init", "optimizer_state")),
    ("no proxies at the server (13)", ("footnote", "replay_weighting")),
)


def ablations(space: str) -> dict[str, Row]:
    """Return the rows of ``CHANGES`` in one of ``SPACES``.

    Raises:
        InputError: unknown space.
    """
    base, fixed = SPACES[choose("space", space, SPACES)]
    return {name: (base, dict(fixed) | change) for name, change in CHANGES.items()}


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


def ends(steps: Mapping[str, Row]) -> dict[str, Row]:
    """Return the first and the last row of :func:`ladder` under the names ``paper`` and ``code``."""
    first, *_, last = steps
    return {"paper": steps[first], "code": steps[last]}


def natural_order(settings: VCLSettings) -> VCLSettings:
    """Return the settings with the classes in the order of the labels for every seed (difference 16)."""
    order = tuple(range(Scene.of(settings).num_classes))
    return settings.model_copy(update={"class_order": order})


def conditions(by_space: Mapping[str, Study]) -> pd.DataFrame:
    """Return results of ``ablations`` in all scopes, with columns space, replay, kd_weight and aggregation.

    Rows that change anything else are left out.

    Args:
        by_space: the studies by name of the space.
    """
    parts = []
    for space, study in by_space.items():
        frame = continual(study)
        frame = frame[frame["task"] == NO_TASK].drop(columns="task")
        for row, change in _CONDITIONS.items():
            own = frame[frame["method"] == row].drop(columns="method")
            parts.append(own.assign(space=space, **(_PLAIN | change)))
    return pd.concat(parts, ignore_index=True)


def scores(study: Study) -> pd.DataFrame:
    """Return what the pages print of each row, in the columns seed, row, metric and value.

    Metrics, in percent where they are accuracies: ``cil`` (overall accuracy, class-incremental), ``balanced`` and
    ``macro_f1`` (class-incremental), ``taw`` (average of the tasks, task-aware), ``joint`` (overall accuracy of
    one head trained on all classes at once),
    ``forgetting`` and ``forgetting_code`` (class-incremental), ``forgetting_taw`` (task-aware, the paper's
    formula), ``uplinks``, ``upload`` and ``download`` (kB of a client); ``cosine_real``, ``cosine_synthetic`` and
    ``scatter_ratio`` of features, as in :func:`fedlib.experiments.vcl.rows`.
    """
    wanted = {
        ("tasks", "cil", "overall_accuracy"): "cil",
        ("tasks", "cil", "balanced_accuracy"): "balanced",
        ("tasks", "cil", "macro_f1"): "macro_f1",
        ("tasks", "taw", "average_accuracy"): "taw",
        ("joint", "cil", "overall_accuracy"): "joint",
        ("tasks", "cil", "forgetting"): "forgetting",
        ("tasks", "cil", "forgetting_code"): "forgetting_code",
        ("tasks", "taw", "forgetting"): "forgetting_taw",
        ("messages", "none", "uplinks"): "uplinks",
        ("messages", "none", "uplink_bytes"): "upload",
        ("messages", "none", "downlink_bytes"): "download",
        ("features", "none", "cosine_real"): "cosine_real",
        ("features", "none", "cosine_synthetic"): "cosine_synthetic",
        ("features", "none", "scatter_ratio"): "scatter_ratio",
    }
    frame = study.metrics
    parts = []
    for (stage, scope, metric), name in wanted.items():
        rows = frame[(frame["stage"] == stage) & (frame["scope"] == scope) & (frame["metric"] == metric)]
        unit = 1000 if name in ("upload", "download") else 1
        parts.append(rows.assign(metric=name, value=rows["value"] / unit)[["seed", "row", "metric", "value"]])
    return pd.concat(parts, ignore_index=True)


def constant_floor(study: Study) -> str:
    """Return in words what always naming the largest class of the test set scores, and the collapsed rows.

    A row has collapsed when with most seeds one class takes more than 99 % of its class-incremental predictions.
    """
    frame = study.select(stage="tasks", scope="cil")
    floor = frame.loc[frame["metric"] == "majority", "value"].mean()
    share = frame[frame["metric"] == "constant"].groupby("row", sort=False)["value"].mean()
    names = ", ".join(map(str, share.index[share > 0.5])) or "none"
    return f"Always naming the largest class: {floor:.1f} %. Collapsed rows: {names}."


def beside(studies: Mapping[str, Study]) -> pd.DataFrame:
    """Return :func:`scores` of studies that have the same rows; a row is named ``<row>, <study>``."""
    found = [(name, scores(one)) for name, one in studies.items()]
    return pd.concat([own.assign(row=own["row"] + f", {name}") for name, own in found], ignore_index=True)


def lost_and_repeated(settings: VCLSettings, partitions: list[str]) -> pd.DataFrame:
    """Return what the code's splits do to the training samples, in the columns seed, row, metric and value.

    Metrics: ``held``, share of the samples that some client holds, percent; ``repeated``, samples that a client
    holds as a copy.

    Args:
        settings: of the experiment; nothing is trained.
        partitions: names ``dirichlet_code_<alpha>``.

    Raises:
        InputError: a partition that loses and repeats nothing.
    """
    scene = Scene.of(settings)
    found = []
    for name in partitions:
        for seed in range(settings.seeds):
            split = scene.partition(name, seed)
            if not isinstance(split, LossySplit):
                raise InputError(f"partition is {name!r}; allowed: dirichlet_code_<alpha>")
            numbers = {"held": 100 * split.coverage, "repeated": float(split.duplicates)}
            found += [(seed, name, metric, value) for metric, value in numbers.items()]
    return pd.DataFrame(found, columns=["seed", "row", "metric", "value"])
