"""The continual baselines on the data and tasks of the VCL-FPFT experiments, one stored run for each seed.

They see all training images in one place, task after task. Encoder, images and tasks are those of VCL-FPFT, whose
clients train before the tasks begin; see :mod:`fedlib.experiments.vcl`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd

from fedlib.errors import InputError, choose
from fedlib.experiments.pool import run_all
from fedlib.experiments.settings import VCLSettings
from fedlib.experiments.study import Study
from fedlib.experiments.vcl import COLUMNS, NO_TASK, tidy
from fedlib.experiments.vcl_scene import Scene
from fedlib.methods.continual import harness
from fedlib.methods.continual.harness import Suite
from fedlib.methods.continual.registry import METHODS, method
from fedlib.methods.continual.strategy import Strategy
from fedlib.methods.continual.training import Training
from fedlib.runs import Run, Store, Workspace

_SUITES = {"lifelonger": Suite.lifelonger, "verma": Suite.verma}


def allowed(settings: VCLSettings) -> tuple[str, ...]:
    """Return the methods that the settings' suite allows: all, or those that store no samples."""
    stored = suite(settings).stored_samples
    return tuple(name for name, kind in METHODS.items() if stored or kind.category != "replay")


def continual(settings: VCLSettings, methods: Sequence[str] | None = None) -> Study:
    """Run continual baselines.

    Columns of the metrics: those of :func:`fedlib.experiments.vcl.rows`, the method in ``row``; ``partition`` is
    empty, as all images are in one place. The stage ``tasks`` has the same metrics as there; the stage
    ``continual`` has stored_kilobytes (what the method keeps besides the network, after the last task) and
    parameters (of what a prediction needs then).

    Args:
        settings: of the experiment.
        methods: of ``fedlib.methods.continual.registry.METHODS``; None takes those that the suite allows.

    Raises:
        InputError: an unknown method, one that the suite excludes, or a setting that is not possible.
    """
    scene = Scene.of(settings)
    names = allowed(settings) if methods is None else tuple(methods)
    for name in names:
        strategy(settings, name)
        if name not in allowed(settings):
            raise InputError(
                f"method {name!r} stores samples; allowed in suite {settings.suite}: "
                f"{', '.join(allowed(settings))}"
            )
    labels = [(name, seed) for name in names for seed in range(settings.seeds)]
    runs = run_all(partial(_job, scene), labels, settings.device)
    return Study.of(
        runs, [{"dataset": settings.dataset, "partition": None, "row": name} for name, _ in labels]
    )


def suite(settings: VCLSettings) -> Suite:
    """Return what all methods share: the suite's settings or its small ones, with the changes of ``settings``.

    Raises:
        InputError: a setting that the training has not, or a value out of range.
    """
    found = _SUITES[settings.suite]()
    if settings.small:
        found = found.small()
    for name in settings.training:
        choose("training", name, [field.name for field in dataclasses.fields(Training)])
    return dataclasses.replace(found, training=dataclasses.replace(found.training, **settings.training))


def strategy(settings: VCLSettings, name: str) -> Strategy:
    """Return a method with its defaults or its small budget, and the changes of ``settings``.

    Raises:
        InputError: unknown method or option, or a value out of range.
    """
    changes = settings.continual.get(choose("method", name, METHODS), {})
    return method(name, "small" if settings.small else "full", **changes)


def _job(scene: Scene, job: tuple[str, int], workers: int | None) -> Run:
    return method_run(scene, *job)


def method_run(scene: Scene, name: str, seed: int) -> Run:
    """Return the run of one method, computed or from the store; its columns are those of :func:`continual`."""
    settings = scene.settings
    shared, chosen = suite(settings), strategy(settings, name)
    config = scene.record(
        seed,
        method=name,
        num_tasks=settings.num_tasks,
        class_order=settings.class_order,
        budget={"suite": dataclasses.asdict(shared), "options": chosen.options()},
    )

    def compute(workspace: Workspace) -> None:
        result = harness.run(
            chosen, scene.encoder(seed), scene.train, scene.test, scene.tasks(seed), shared, seed, scene.val
        )
        numbers = {
            "stored_kilobytes": result.stored_bytes[-1] / 1000,
            "parameters": float(result.parameters[-1]),
        }
        kept: list[tuple[Any, ...]] = [
            ("continual", "none", NO_TASK, NO_TASK, metric, value) for metric, value in numbers.items()
        ]
        scored = tidy({name: result.accuracy}, "tasks")
        metrics = pd.concat([scored, pd.DataFrame(kept, columns=list(COLUMNS))], ignore_index=True)
        metrics.insert(0, "seed", seed)
        workspace.finish(metrics)

    return Store().compute(scene.spec("vcl.continual", config, __name__), compute)
