"""The continual baselines and VCL-FPFT in one table, in the columns of the register."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fedlib.experiments import vcl_pages
from fedlib.experiments.settings import VCLSettings
from fedlib.experiments.study import Study
from fedlib.experiments.vcl import rows
from fedlib.experiments.vcl_continual import continual
from fedlib.experiments.vcl_oneshot import oneshot
from fedlib.methods.continual.registry import CATEGORIES, METHODS

REFERENCE = "frozen_ncm"
TABLE_6 = ("finetune", "joint", "ewc", "mas", "lwf", "icarl", "eeil")
"""The methods that Table 6 prints, and joint training."""


def kinds() -> pd.DataFrame:
    """Return category and stored data of each method, by its name (index): columns category, stores, label."""
    found = {name: (CATEGORIES[kind.category], kind.stores, kind.label) for name, kind in METHODS.items()}
    return pd.DataFrame.from_dict(found, orient="index", columns=["category", "stores", "label"])


def names() -> dict[str, str]:
    """Return the names of all methods in tables and figures, in their order."""
    own = ("vcl", "vcl_joint", "vcl_code", REFERENCE)
    return dict(kinds()["label"]) | {name: vcl_pages.LABELS[name] for name in own}


def beside_vcl(settings: VCLSettings, methods: Sequence[str] | None = None) -> Study:
    """Run continual baselines, VCL-FPFT with IID clients, and class means on a frozen encoder.

    Args:
        settings: of the experiment.
        methods: the baselines; None takes those that the suite allows.
    """
    others = (
        rows(settings, vcl_pages.PRESET_ROWS, ["IID"]),
        oneshot(settings, [REFERENCE], ["IID"]),
    )
    studies = (continual(settings, methods), *others)
    metrics = pd.concat([study.metrics for study in studies], ignore_index=True)
    return Study(tuple(run for study in studies for run in study.runs), metrics)


def scored(study: Study) -> pd.DataFrame:
    """Return what the methods of :func:`beside_vcl` score after the last task.

    The columns are those of :func:`fedlib.experiments.vcl_pages.continual`. ``vcl_joint`` is one head on the
    classes of all tasks at once.
    """
    frame = study.metrics
    joint = frame[(frame["stage"] == "joint") & frame["row"].isin(["vcl", REFERENCE])]
    once = joint.replace({"row": {"vcl": "vcl_joint"}}).rename(columns={"row": "method"})
    return pd.concat([vcl_pages.continual(study), once.drop(columns=["stage", "after"])], ignore_index=True)


def course(study: Study) -> pd.DataFrame:
    """Return the accuracy on each task after each: columns seed, dataset, method, scope, after, task, value."""
    frame = study.select(stage="tasks", metric="accuracy")
    return frame.rename(columns={"row": "method"}).drop(columns=["stage", "metric", "partition"])


def kept(study: Study) -> pd.DataFrame:
    """Return what the methods keep besides the network: columns seed, dataset, method, metric, value."""
    frame = study.select(stage="continual").rename(columns={"row": "method"})
    return frame[["seed", "dataset", "method", "metric", "value"]]
