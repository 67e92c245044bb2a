"""Clients whose encoders have different architectures, beside clients that all have the same (Tables 4 and 5)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pandas as pd

from fedlib.errors import choose
from fedlib.experiments import vcl_oneshot, vcl_pages
from fedlib.experiments.settings import VCLSettings
from fedlib.experiments.study import Study
from fedlib.experiments.vcl import Row, rows

KINDS = ("homogeneous", "heterogeneous")
"""Scenarios of the settings: all clients have the same architecture, or each its own."""

ALL_KINDS = {
    "homogeneous": "all MobileNetV2 with attention",
    "homogeneous_small": "all WRN-16-2",
    "heterogeneous": "five different",
}
"""These, one with another common architecture, and their names."""

SPACES: dict[str, Row] = {
    "vcl": ("paper", {}),
    "fixed anchors": ("paper", {"shared_space": "proxyset"}),
    "nothing shared": ("paper", {"shared_space": "local"}),
    "frozen random encoders": (
        "paper",
        {
            "objective": "ce",
            "shared_space": "frozen",
            "source": "moments",
            "eval_encoder": "per_client",
        },
    ),
}
"""Ways to make the features of clients with several architectures comparable; ``vcl`` has anchors, our default."""

DISTILLED = vcl_oneshot.DISTILLED
REFERENCES = ("local_only", "logit_ensemble")


def labels() -> dict[str, str]:
    """Return the names of the methods in tables, in their order."""
    return {name: vcl_pages.LABELS[name] for name in ("vcl", "fbpft_vi", *DISTILLED, *REFERENCES)}


def spaces(
    settings: VCLSettings, wanted: Sequence[str] = tuple(SPACES), kinds: Sequence[str] = KINDS
) -> Study:
    """Run VCL-FPFT in several shared spaces, with several architectures and with one.

    The columns of the metrics are those of :func:`fedlib.experiments.vcl.rows`, and ``clients`` (of ``KINDS``).

    Args:
        settings: with the scenarios ``KINDS``.
        wanted: of ``SPACES``.
        kinds: of ``ALL_KINDS``.

    Raises:
        InputError: an unknown space or kind, or settings that are not possible.
    """
    chosen = {name: SPACES[choose("space", name, SPACES)] for name in wanted}
    return _kinds(settings, lambda own: rows(own, chosen), kinds)


def one_shot(settings: VCLSettings, methods: Sequence[str]) -> Study:
    """Run one-shot methods and FBPFT-VI with clients of several architectures; columns as :func:`spaces`.

    FBPFT-VI is VCL-FPFT on frozen encoders, which differ here: its row is the stage ``joint`` of ``fbpft_vi``.

    Args:
        settings: with the scenario ``heterogeneous``.
        methods: of :data:`fedlib.experiments.vcl_oneshot.METHODS`, those that take several architectures.
    """

    def both(own: VCLSettings) -> Study:
        frozen = dataclasses.asdict(vcl_oneshot.budget(own, "fbpft_vi")) | {"eval_encoder": "per_client"}
        studies = [rows(own, {"fbpft_vi": ("paper", frozen)}), vcl_oneshot.oneshot(own, methods)]
        metrics = pd.concat([study.metrics for study in studies], ignore_index=True)
        return Study(tuple(run for study in studies for run in study.runs), metrics)

    return _kinds(settings, both, KINDS[1:])


def by_clients(*studies: Study) -> pd.DataFrame:
    """Return what is scored after the last task, and of one-shot methods at the end, in all scopes.

    Columns: seed, dataset, partition, clients, method, scope, task, metric, value.
    """
    frame = pd.concat([study.metrics for study in studies], ignore_index=True)
    frame = frame[~frame["metric"].isin(["accuracy", "test_samples"])].rename(columns={"row": "method"})
    once = frame["method"].isin([*vcl_oneshot.METHODS])
    kept = frame[frame["stage"].eq("joint") & once | frame["stage"].eq("tasks") & ~once]
    return kept.drop(columns=["stage", "after"])


def each_backbone(study: Study) -> pd.DataFrame:
    """Return the accuracy under each client's encoder: columns seed, dataset, partition, clients, method, scope,
    backbone and value."""
    frame = study.select(stage="encoders").rename(columns={"row": "method"})
    names = frame["metric"].str.split("/").str[1]
    return frame.assign(backbone=names).drop(columns=["stage", "after", "task", "metric"])


def _kinds(settings: VCLSettings, study: Callable[[VCLSettings], Study], kinds: Sequence[str]) -> Study:
    found = {kind: vcl_pages.over_datasets(settings.for_scenario(kind), study) for kind in kinds}
    metrics = [one.metrics.assign(clients=kind) for kind, one in found.items()]
    return Study(
        tuple(run for one in found.values() for run in one.runs), pd.concat(metrics, ignore_index=True)
    )
