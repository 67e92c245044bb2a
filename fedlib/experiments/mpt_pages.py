"""Experiments of single MPT pages: tasks, backbones, regimes, the use of what remains, the drift bench."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr

from fedlib import seeds
from fedlib.data import Partition
from fedlib.experiments.mpt_scenario import Departure, bench_of
from fedlib.experiments.mpt_tracking import (
    HEADLINE,
    Cell,
    cells_of,
    follow,
    headline,
    tracker_options,
)
from fedlib.experiments.pool import run_all
from fedlib.experiments.settings import MPTSettings
from fedlib.experiments.study import Study
from fedlib.features.ncm import regularise
from fedlib.methods.mpt import capabilities
from fedlib.methods.mpt.trackers import entry
from fedlib.methods.mpt.transport import KINDS, prepare, transport
from fedlib.runs import Run

COMPARED = (
    "fedavg", "ccvr", "icarl", "icarl_distil", "sdc", "sdc_federated", "ldc", "ldc_ridge", "frozen", "ncm",
    "mpt_lite", "mpt",
)  # fmt: skip
"""Rows of the table of capabilities."""

ON_TASKS = (*HEADLINE, "mpt_euclidean")
"""The headline, and MPT with the readout of MPT-lite: which of the two makes a difference?"""

MOST_PICTURES = 4000  # that the linear classifier on pixels is trained on: bounds time and memory


def over_tasks(
    settings: MPTSettings, methods: Sequence[str] = ON_TASKS, tasks: Sequence[str] | None = None
) -> Study:
    """Follow the rare class on each classification task; columns as ``tracking`` and ``task``.

    Args:
        settings: with the tasks in ``settings.tasks``.
        methods: see ``tracking``.
        tasks: names of some of them; None takes all.

    Raises:
        InputError: unknown task.
    """
    cells: list[Cell] = []
    for task in tasks or settings.tasks:
        cells += cells_of(settings.for_task(task), methods, label={"task": task})
    return follow(cells)


def linear_on_pixels(settings: MPTSettings) -> pd.Series:
    """Return the test accuracy of a linear classifier on the pixels of each task: what one gets without features.

    Logistic regression with an L2 penalty, on up to 4,000 training pictures in one place; nobody leaves.

    Args:
        settings: with the tasks in ``settings.tasks``.

    Returns:
        Accuracy by task.
    """
    from sklearn.linear_model import LogisticRegression  # a second of imports that no other page needs

    found = {}
    for task in settings.tasks:
        bench = bench_of(settings.for_task(task))
        train, test = bench.part("train"), bench.part("test")
        some = np.sort(seeds.rng(0, "linear-on-pixels").permutation(len(train))[:MOST_PICTURES])
        pixels, unseen = (
            images.reshape(len(images), -1).astype(np.float32) / 255
            for images in (train.images[some], test.images)
        )
        centre = pixels.mean(axis=0)
        classifier = LogisticRegression(C=0.1, max_iter=300).fit(pixels - centre, train.labels[some])
        found[task] = float(classifier.score(unseen - centre, test.labels))
    return pd.Series(found, name="accuracy").rename_axis("task")


def in_one_place(settings: MPTSettings) -> pd.Series:
    """Return the test accuracy of each task's network where all pictures are in one place and nobody leaves.

    The same training as that of the vehicles, of one client that holds everything: the mean of the last three
    rounds, one seed.

    Args:
        settings: with the tasks in ``settings.tasks``.

    Returns:
        Accuracy by task.
    """
    runs = run_all(partial(_in_one_place, settings), list(settings.tasks), settings.device)
    found = {}
    for task, run in zip(settings.tasks, runs, strict=True):
        rows = run.metrics
        rows = rows[rows["metric"] == "accuracy"]
        found[task] = float(rows[rows["round"] > rows["round"].max() - 3]["value"].mean())
    return pd.Series(found, name="accuracy").rename_axis("task")


def _in_one_place(settings: MPTSettings, task: str, workers: int | None) -> Run:
    own = settings.for_task(task)
    bench = bench_of(own)
    everything = Partition((np.arange(len(bench.labels)),), len(bench.labels), np.empty(0, dtype=np.int64))
    return bench.train(bench.method(), everything, seed=0, workers=workers)


def over_backbones(
    settings: MPTSettings,
    methods: Sequence[str] = HEADLINE,
    backbones: Sequence[str] | None = None,
    *,
    task: str | None = None,
) -> Study:
    """Follow the rare class with each backbone; columns as ``tracking``, and ``task`` where one is given.

    Args:
        settings: with the backbones in ``settings.backbones``.
        methods: see ``tracking``.
        backbones: names of some of them; None takes all.
        task: on the data of one of ``settings.tasks``; what the backbone changes comes first.

    Raises:
        InputError: unknown backbone or task.
    """
    base = settings if task is None else settings.for_task(task)
    label = {} if task is None else {"task": task}
    cells: list[Cell] = []
    for backbone in backbones or settings.backbones:
        cells += cells_of(base.for_backbone(backbone), methods, label=label)
    return follow(cells)


def by_readout(study: Study) -> pd.DataFrame:
    """Return rare F1, precision and recall after the departure of three prototypes in two readouts.

    Columns: seed, task, remaining, prototype (MPT | MPT-lite | oracle), distance (Mahalanobis | Euclidean),
    metric, value; the mean over rounds. The oracle has the Mahalanobis distance only.

    Args:
        study: of ``over_tasks`` with the methods ``ON_TASKS``.
    """
    named = {
        ("mpt", "shared"): ("MPT", "Mahalanobis"),
        ("mpt_euclidean", "native"): ("MPT", "Euclidean"),
        ("mpt_lite", "shared"): ("MPT-lite", "Mahalanobis"),
        ("mpt_lite", "native"): ("MPT-lite", "Euclidean"),
        ("oracle", "shared"): ("oracle", "Mahalanobis"),
    }
    rows = study.metrics
    wanted = (rows["phase"] == "after") & rows["metric"].isin(["rare_f1", "rare_precision", "rare_recall"])
    keys = ["method", "readout"]
    names = pd.DataFrame(
        [(*pair, *name) for pair, name in named.items()], columns=[*keys, "prototype", "distance"]
    )
    rows = rows[wanted].merge(names, on=keys)
    condition = ["seed", "task", "remaining", "prototype", "distance", "metric"]
    return rows.groupby(condition, as_index=False)["value"].mean()


def better_variant(rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``rare_f1`` of the better of MPT and MPT-lite in each setting, under the name ``better_variant``.

    Which one is better is decided by the mean over seeds and rounds after the departure: once for a setting, so
    that no seed picks its own winner.

    Args:
        rows: of ``headline`` with the columns task, backbone and remaining.
    """
    setting = ["task", "backbone", "remaining"]
    rows = rows[rows["method"].isin(["mpt", "mpt_lite"]) & (rows["metric"] == "rare_f1")]
    late = rows[rows["phase"] == "after"]
    means = late.groupby([*setting, "method"])["value"].mean().unstack()
    winner = means.idxmax(axis=1).rename("winner").reset_index()
    found = rows.merge(winner, on=setting)
    found = found[found["method"] == found["winner"]].drop(columns="winner")
    return found.assign(method="better_variant").reset_index(drop=True)


def over_regimes(
    settings: MPTSettings,
    noises: Sequence[float],
    *,
    step_sizes: Sequence[float] = (),
    methods: Sequence[str] = ("mpt", "mpt_lite", "ncm", "predicted", "full_space", "oracle"),
) -> Study:
    """Sweep what decides whether tracking helps: class separation, samples that remain, movement of the
    backbone.

    Columns as ``tracking``, ``noise`` (pixel noise: more of it, less separation), ``lr`` (a larger step moves the
    backbone further after the departure), ``departed`` (last round of the vehicle: after an early one more
    movement follows) and ``samples`` (how many of the rare class remain); the remaining fraction is swept by
    the settings.

    Args:
        settings: of the experiment.
        noises: values of ``pixel_noise``.
        step_sizes: values of ``lr``; empty takes the settings'.
        methods: see ``tracking``.
    """
    cells: list[Cell] = []
    for noise in noises:
        for lr in step_sizes or (settings.lr,):
            changed = type(settings)(
                **(settings.model_dump() | {"pixel_noise": float(noise), "lr": float(lr)})
            )
            where = {"noise": float(noise), "lr": float(lr), "departed": settings.departure_round}
            cells += cells_of(changed, methods, label=where)
    labels = bench_of(settings).labels
    counted = [
        replace(cell, label={**cell.label, "samples": _left(labels, cell.departure)}) for cell in cells
    ]
    return follow(counted)


def _left(labels: np.ndarray, departure: Departure) -> int:
    """Return how many samples of the rare class stay; see ``fedlib.data.partition.departure``."""
    n = int((labels == departure.rare_class).sum())
    return max(1, n - round((1 - departure.remaining) * n))


def gain_and_ratio(study: Study | pd.DataFrame) -> pd.DataFrame:
    """Return, for each cell of ``over_regimes``, the gain of MPT over re-estimation and the ratio q.

    Means over the rounds after the departure. Columns: seed, rare_class, remaining, samples, noise, lr, departed,
    q, gain (rare F1 of MPT minus that of NCM re-estimation, the same readout), gain_full_space (the same for our
    extension).

    Args:
        study: of ``over_regimes``, or its rows, also of several of them.
    """
    rows = headline(study)
    rows = rows[rows["phase"] == "after"]
    keys = ["seed", "rare_class", "remaining", "samples", "noise", "lr", "departed"]
    f1 = rows[rows["metric"] == "rare_f1"].pivot_table("value", keys, "method")
    q = rows[rows["metric"] == "q"].groupby(keys)["value"].mean()
    return (
        pd.DataFrame({"q": q, "gain": f1["mpt"] - f1["ncm"], "gain_full_space": f1["full_space"] - f1["ncm"]})
        .dropna(subset=["q"])
        .reset_index()
    )


def reserve_or_train(settings: MPTSettings) -> tuple[Study, pd.DataFrame]:
    """Compare MPT whose remaining rare samples are held out of training with MPT whose vehicles train on them.

    Re-estimation and the oracle are read on both trainings too.

    Returns:
        The study, and its scores with the column ``holdout`` (bool) instead of training and readout.
    """
    methods = ("mpt", "ncm", "oracle")
    reserved = [name for name in HEADLINE if entry(name).training == "holdout"]  # the runs of ``tracking``
    cells = cells_of(settings, reserved, training="holdout") + cells_of(settings, methods, training="train")
    study = follow(cells)
    rows = study.metrics[study.metrics["readout"].isin(["shared", "none"])]
    rows = rows[rows["method"].isin(methods)]
    frame = rows.assign(holdout=rows["training"] == "holdout").drop(columns=["training", "readout"])
    return study, frame.reset_index(drop=True)


def error_and_f1(study: Study) -> pd.DataFrame:
    """Return the rank correlation of prototype error and rare F1 within each seed, as a tidy frame.

    Over methods, rare classes, fractions and rounds after the departure; Spearman's rho. Columns: seed, metric
    (``rank_correlation``), value.
    """
    rows = headline(study)
    rows = rows[rows["phase"] == "after"]
    keys = [name for name in rows.columns if name not in ("metric", "value")]
    wide = rows[rows["metric"].isin(["prototype_error", "rare_f1"])]
    wide = wide.pivot_table("value", keys, "metric").dropna().reset_index()
    found = [
        (seed, "rank_correlation", float(spearmanr(part["prototype_error"], part["rare_f1"]).statistic))
        for seed, part in wide.groupby("seed")
    ]
    return pd.DataFrame(found, columns=["seed", "metric", "value"])


def demands(settings: MPTSettings, methods: Sequence[str] = COMPARED) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the table of capabilities, and the rows that the claim on privacy and training is judged by.

    Args:
        settings: of the experiment.
        methods: rows of the table.

    Returns:
        The table: method, drift, heterogeneous, no_samples, no_training, sends, keeps. The rows, of MPT alone:
        seed, method, metric (``per_sample_tensors_sent``, ``extra_training_steps``), value.
    """
    found = capabilities.table(methods, tracker_options(settings))
    table = pd.DataFrame(
        {
            "method": entry(row.method).label,
            "drift": row.follows_drift,
            "heterogeneous": row.aggregates,
            "no_samples": row.per_sample_free,
            "no_training": row.training_free,
            "sends": ", ".join(row.sends_samples),
            "keeps": ", ".join((*row.stores_samples, *(["earlier model"] if row.keeps_model else []))),
        }
        for row in found
    )
    rows = [
        {"seed": 0, "method": row.method, "metric": metric, "value": float(value)}
        for row in found
        if row.method == "mpt"
        for metric, value in (
            ("per_sample_tensors_sent", len(row.sends_samples) + len(row.stores_samples)),
            ("extra_training_steps", row.server_steps),
        )
    ]
    return table, pd.DataFrame(rows)


# --- the drift bench ------------------------------------------------------------------------------------------


def drift_bench(
    kinds: Sequence[str] = KINDS,
    *,
    dim: int = 48,
    strength: float = 0.35,
    samples: int | None = None,
    rho: float = 0.01,
    repeats: int = 8,
) -> pd.DataFrame:
    """Compare the transports where the drift is known: z -> A z with A = expm(strength G), no training.

    Sigma_0 has the eigenvalues e^(-i/8) and random directions; G is a random matrix, symmetric, antisymmetric or
    neither, of spectral size about one. The residual e0 is drawn from N(0, I) (``any``: all directions alike),
    from N(0, Sigma_0) (``like features``), or from N(0, Sigma_0^1/2) (``between``): a residual is what is left of
    a class mean outside the span, where features vary less. Which of them decides much: whitening errs in
    directions in which features hardly vary. Columns: seed, drift (symmetric | antisymmetric | mixed), residual,
    transport, metric (``relative_error`` ||T e0 - A e0|| / ||A e0||), value.

    Args:
        kinds: transports.
        dim: d.
        strength: size of the drift.
        samples: features from which each covariance is estimated; None takes the exact ones.
        rho: trace-scaled ridge.
        repeats: number of random repetitions.
    """
    rows = []
    eye = torch.eye(dim, dtype=torch.float64)
    for seed in range(repeats):
        draw = seeds.torch_generator(seed, "drift-bench")
        turn, _ = torch.linalg.qr(torch.randn(dim, dim, generator=draw, dtype=torch.float64))
        values = torch.exp(-torch.arange(dim, dtype=torch.float64) / 8)
        sigma = (turn * values) @ turn.T
        raw = torch.randn(dim, dim, generator=draw, dtype=torch.float64) / dim**0.5
        e = torch.randn(dim, generator=draw, dtype=torch.float64)
        # turn @ (values^(k/2) e) has the covariance Sigma_0^k
        residuals = {
            name: turn @ (values ** (power / 2) * e)
            for name, power in (("any", 0), ("between", 0.5), ("like features", 1))
        }
        drifts = {"symmetric": (raw + raw.T) / 2, "antisymmetric": (raw - raw.T) / 2, "mixed": raw}
        for drift, generator in drifts.items():
            a = torch.matrix_exp(strength * generator)
            s0, st = sigma, a @ sigma @ a.T
            if samples is not None:
                s0, st = (_estimate(s, samples, draw) for s in (s0, st))
            for kind in kinds:
                t = transport(prepare(kind, regularise(s0, rho)), regularise(st, rho), eye)  # type: ignore[arg-type]
                for name, e0 in residuals.items():
                    error = float((t @ e0 - a @ e0).norm() / (a @ e0).norm())
                    rows.append((seed, drift, name, kind, "relative_error", error))
    return pd.DataFrame(rows, columns=["seed", "drift", "residual", "transport", "metric", "value"])


def _estimate(sigma: torch.Tensor, samples: int, draw: torch.Generator) -> torch.Tensor:
    root = torch.linalg.cholesky((sigma + sigma.T) / 2)
    z = torch.randn(samples, len(sigma), generator=draw, dtype=torch.float64) @ root.T
    return torch.cov(z.T)
