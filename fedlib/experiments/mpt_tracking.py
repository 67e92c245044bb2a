"""Every method on one trajectory of backbones, for each seed, class and fraction (MPT, sections IV and V)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pandas as pd

from fedlib.experiments.federated import Bench, trajectory_of
from fedlib.experiments.mpt_replay import Replay
from fedlib.experiments.mpt_scenario import (
    Departure,
    bench_of,
    departures,
    scenario_config,
    training_run,
)
from fedlib.experiments.pool import run_all
from fedlib.experiments.settings import MPTSettings
from fedlib.experiments.study import Study
from fedlib.methods.mpt.options import MPTOptions
from fedlib.methods.mpt.trackers import METHODS, TrackerOptions, Training, entry
from fedlib.models import module_of
from fedlib.runs import Run, RunSpec, Store, Workspace

HEADLINE = ("mpt", "mpt_lite", "fedavg", "ccvr", "icarl", "sdc", "ldc", "ncm", "frozen", "oracle")
"""The methods of the paper's figure 4 and tables, NCM re-estimation and the references."""
ABLATION = (
    "mpt", "mpt_lite", "in_span", "static", "predicted", "measured", "predicted_zca", "predicted_scalar",
    "mpt_zca", "mpt_chol", "mpt_pca", "mpt_scalar", "ncm", "oracle", "full_space", "difference",
    "mpt_mahalanobis",
)  # fmt: skip
"""MPT part by part, the transports, and our three extensions."""
LITE = ("mpt_lite", "lite_trace", "lite_spread", "lite_regress", "lite_none", "lite_diag")
"""MPT-lite with every scalar, and with its diagonal readout."""
SCORES = ("rare_f1", "rare_precision", "rare_recall", "accuracy", "macro_f1")


@dataclass(frozen=True)
class Cell:
    """One departure under some settings, with the condition columns of its rows.

    Attributes:
        settings: data, backbone, length.
        departure: seed, class, fraction.
        training: which trajectory; see ``mpt_scenario.training_run``.
        methods: what is read on it.
        label: further condition columns.
    """

    settings: MPTSettings
    departure: Departure
    training: str
    methods: tuple[str, ...]
    label: Mapping[str, object] = field(default_factory=dict)


def tracking(
    settings: MPTSettings,
    methods: Sequence[str] = HEADLINE,
    *,
    training: Training | None = None,
    label: Mapping[str, object] | None = None,
) -> Study:
    """Follow the rare class with every method, for each seed, rare class and remaining fraction.

    Each (departure, training) is one stored run; the trajectory under it is stored apart, so that further
    methods cost no training. Columns: seed, rare_class, remaining, backbone, training (holdout | train | distil
    | stay), method, readout, round, phase (before | after), metric, value, and those of ``label``.

    Rows with ``readout`` ``shared`` (Mahalanobis, the same for all methods) and ``native`` (the authors' own)
    hold the scores rare_f1, rare_precision, rare_recall, accuracy and macro_f1; ``headline`` picks the one that
    tables print. All other rows have readout ``none``: prototype_error (Mahalanobis distance to the oracle's
    prototype), in_span_error (methods barycentric and direct) and residual_error, each also ``_relative`` to
    the size of what is estimated, prediction_weight, q (noise-to-drift ratio), condition and dead_features
    of the covariance, and, for the first round after the
    departure, uplink_bytes, downlink_bytes (serialised, model included, mean over vehicles) and uplink_floats,
    uplink_formula, downlink_formula (in floats, model not included).

    Args:
        settings: of the experiment.
        methods: names of ``fedlib.methods.mpt.trackers.METHODS``.
        training: read all methods on this trajectory instead of their own.
        label: further condition columns, for example the task.

    Raises:
        InputError: unknown method, or a class, fraction or data set that cannot be had.
    """
    return follow(cells_of(settings, methods, training=training, label=label))


def cells_of(
    settings: MPTSettings,
    methods: Sequence[str],
    *,
    training: Training | None = None,
    label: Mapping[str, object] | None = None,
) -> list[Cell]:
    """Return the cells of ``tracking``; several lists together can be given to ``follow``."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(methods):
        groups.setdefault(training or entry(name).training, []).append(name)
    bench = bench_of(settings)
    found = departures(bench, settings)
    # One training after the other: two of one departure, side by side, would wait for the rounds that they share.
    return [
        Cell(settings, departure, chosen, tuple(names), dict(label or {}))
        for chosen, names in groups.items()
        for departure in found
    ]


def follow(cells: Sequence[Cell]) -> Study:
    """Compute the cells, side by side on all cores, and return their rows in one table."""
    benches: dict[str, Bench] = {}
    for cell in cells:
        benches.setdefault(_data_key(cell.settings), bench_of(cell.settings))
    device = "cuda" if any(cell.settings.device == "cuda" for cell in cells) else "cpu"
    return Study.of(run_all(partial(_cell_run, benches), cells, device), [cell.label for cell in cells])


def _data_key(settings: MPTSettings) -> str:
    return repr((settings.dataset, sorted(settings.dataset_options.items()), settings.pixel_noise))


def _cell_run(benches: Mapping[str, Bench], cell: Cell, workers: int | None) -> Run:
    settings = cell.settings
    bench = Bench(settings, benches[_data_key(settings)].images)
    options = tracker_options(settings)
    config = scenario_config(settings, cell.departure) | {
        "training": cell.training,
        "methods": list(cell.methods),
        "min_count": settings.min_count,
        "mpt": options.mpt.__dict__,
    }

    def compute(workspace: Workspace) -> None:
        training = training_run(bench, settings, cell.departure, cell.training, workers)
        trajectory = trajectory_of(training)
        replay = Replay(bench, settings, cell.departure, cell.training, trajectory)
        rows = list(replay.rows({name: entry(name).make(options) for name in cell.methods}))
        workspace.finish(pd.DataFrame(rows))
        if not settings.keep_backbones:
            Store().remove(training.key)

    checksums = {settings.dataset: bench.images.card.checksum}
    spec = RunSpec("mpt.tracking", config, checksums, (__name__, module_of(settings.model)))
    return Store().compute(spec, compute)


def tracker_options(settings: MPTSettings) -> TrackerOptions:
    """Return the choices of all methods under some settings."""
    return TrackerOptions(
        mpt=MPTOptions(
            lambda_rel=settings.lambda_rel,
            rho=settings.rho,
            transport=settings.transport,
            complement=settings.complement,
            weight=settings.weight,
            ema=settings.ema,
            lite_scalar=settings.lite_scalar,
        )
    )


def headline(study: Study | pd.DataFrame) -> pd.DataFrame:
    """Return one readout for each method, as tables print it, on the method's own trajectory.

    The Mahalanobis readout that all prototype methods share, the native one for heads and MPT-lite; rows that
    are no scores are kept. The columns readout and training are gone.
    """
    rows = study.metrics if isinstance(study, Study) else study
    known = {name: line for name, line in METHODS.items() if name in set(rows["method"])}
    wanted = rows["method"].map({n: "shared" if line.shared else "native" for n, line in known.items()})
    own = rows["method"].map({n: line.training for n, line in known.items()})
    printed = (rows["readout"] == wanted) & (rows["training"] == own)
    other = (rows["readout"] == "none") & ((rows["training"] == own) | own.isna())
    return rows[printed | other].drop(columns=["readout", "training"])


def averaged(rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return the mean over some condition columns within each seed; these columns are gone.

    >>> rows = pd.DataFrame({"seed": [0, 0], "rare_class": [1, 2], "metric": "rare_f1", "value": [0.4, 0.6]})
    >>> averaged(rows, "rare_class")["value"].tolist()
    [0.5]
    """
    keys = [name for name in rows.columns if name not in (*columns, "value")]
    return rows.groupby(keys, as_index=False, dropna=False, sort=False)["value"].mean()
