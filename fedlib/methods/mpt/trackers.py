"""The registry of every method that the MPT pages compare.

To add one: write its mathematics and its ``tracking.Tracker`` in a file of its own, and a line in ``METHODS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from fedlib.errors import choose
from fedlib.methods.mpt.baselines.ccvr import CCVR, CCVRTracker
from fedlib.methods.mpt.baselines.icarl import EXEMPLARS, ICaRLTracker
from fedlib.methods.mpt.baselines.ldc import LDC, LDCTracker
from fedlib.methods.mpt.baselines.plain import Frozen, Head, NoDeparture, Oracle, ReEstimation
from fedlib.methods.mpt.baselines.sdc import SDCTracker
from fedlib.methods.mpt.method import MPT, MPTEuclidean, MPTLite, MPTLiteDiagonal
from fedlib.methods.mpt.options import MPTOptions
from fedlib.methods.mpt.tracking import Tracker

Training = Literal["holdout", "train", "distil", "stay"]


@dataclass(frozen=True)
class TrackerOptions:
    """Choices of all methods.

    Attributes:
        mpt: of MPT and its variants.
        ccvr: of CCVR.
        ldc: of LDC.
        sdc_sigma_rel: bandwidth of SDC relative to the features' length.
        exemplars: of iCaRL, for each class of a vehicle.
    """

    mpt: MPTOptions = field(default_factory=MPTOptions)
    ccvr: CCVR = field(default_factory=CCVR)
    ldc: LDC = field(default_factory=LDC)
    sdc_sigma_rel: float = 0.3
    exemplars: int = EXEMPLARS


@dataclass(frozen=True)
class Entry:
    """One line of the registry.

    Attributes:
        make: from the options to a new tracker.
        label: name in tables and figures.
        training: trajectory that it is read on: ``holdout`` (remaining rare samples are not trained on),
            ``train`` (they are), ``distil`` (they are, with iCaRL's distillation), ``stay`` (nobody leaves).
        shared: whether tables print it with the Mahalanobis readout that all prototype methods share; else with
            its native readout.
        extension: ours, never in a row called MPT.
    """

    make: Callable[[TrackerOptions], Tracker]
    label: str
    training: Training = "holdout"
    shared: bool = True
    extension: bool = False


def _mpt(options: TrackerOptions, part: Literal["all", "in_span"] = "all", **changes: object) -> Tracker:
    return MPT(replace(options.mpt, **changes), part=part)  # type: ignore[arg-type]


def _lite(options: TrackerOptions, make: type[MPTLite] = MPTLite, **changes: object) -> Tracker:
    mine = options.mpt
    if mine.weight == "js":  # its Euclidean form: there is no covariance to measure lengths with
        mine = replace(mine, weight="js_euclid")
    return make(replace(mine, **changes))  # type: ignore[arg-type]


METHODS: dict[str, Entry] = {
    "mpt": Entry(_mpt, "MPT"),
    "mpt_lite": Entry(_lite, "MPT-lite", shared=False),
    "fedavg": Entry(lambda o: Head(), "FedAvg (head)", training="train", shared=False),
    "ccvr": Entry(lambda o: CCVRTracker(o.ccvr), "CCVR", training="train", shared=False),
    "icarl": Entry(lambda o: ICaRLTracker(o.exemplars), "iCaRL"),
    "sdc": Entry(lambda o: SDCTracker(o.sdc_sigma_rel), "SDC"),
    "ldc": Entry(lambda o: LDCTracker(o.ldc), "LDC"),
    "ncm": Entry(lambda o: ReEstimation(), "NCM re-estimation"),
    "frozen": Entry(lambda o: Frozen(), "frozen prototype"),
    "oracle": Entry(lambda o: Oracle(), "oracle"),
    "no_departure": Entry(lambda o: NoDeparture(), "no departure", training="stay"),
    # variants of the baselines
    "icarl_distil": Entry(lambda o: ICaRLTracker(o.exemplars), "iCaRL with distillation", training="distil"),
    "head_holdout": Entry(lambda o: Head(), "FedAvg (head), rare samples held out", shared=False),
    "sdc_direct": Entry(lambda o: SDCTracker(o.sdc_sigma_rel, chain=False), "SDC, from the departure"),
    "sdc_median": Entry(lambda o: SDCTracker(None), "SDC, bandwidth by median distance"),
    "sdc_federated": Entry(lambda o: SDCTracker(o.sdc_sigma_rel, federated=True), "SDC, from sums"),
    "ldc_ridge": Entry(lambda o: LDCTracker(o.ldc, ridge=True), "LDC, closed form"),
    # ablation of MPT
    "in_span": Entry(partial(_mpt, part="in_span"), "in-span part only"),
    "static": Entry(partial(_mpt, transport="none", weight="fixed", alpha=0.0), "static residual"),
    "predicted": Entry(partial(_mpt, weight="fixed", alpha=0.0), "predicted residual"),
    "measured": Entry(partial(_mpt, weight="fixed", alpha=1.0), "measured residual"),
    "predicted_zca": Entry(
        partial(_mpt, transport="zca", weight="fixed", alpha=0.0), "predicted residual, zca"
    ),
    "predicted_scalar": Entry(
        partial(_mpt, transport="scalar", weight="fixed", alpha=0.0), "predicted residual, scalar"
    ),
    "mpt_zca": Entry(partial(_mpt, transport="zca"), "MPT with zca"),
    "mpt_chol": Entry(partial(_mpt, transport="chol"), "MPT with chol"),
    "mpt_pca": Entry(partial(_mpt, transport="pca"), "MPT with pca"),
    "mpt_scalar": Entry(partial(_mpt, transport="scalar"), "MPT with a scalar transport"),
    "mpt_hard": Entry(partial(_mpt, complement="hard"), "MPT with the hard complement"),
    "mpt_ema": Entry(partial(_mpt, ema=0.7), "MPT with smoothed weights"),
    "mpt_count": Entry(partial(_mpt, weight="count"), "MPT with n / (n + kappa)"),
    "mpt_count_deff": Entry(partial(_mpt, weight="count_deff"), "MPT with n / (n + d_eff)"),
    "mpt_js_euclid": Entry(partial(_mpt, weight="js_euclid"), "MPT with Euclidean weights"),
    "lite_trace": Entry(partial(_lite, lite_scalar="trace"), "MPT-lite, trace", shared=False),
    "lite_spread": Entry(partial(_lite, lite_scalar="spread"), "MPT-lite, spread", shared=False),
    "lite_regress": Entry(partial(_lite, lite_scalar="regress"), "MPT-lite, regression", shared=False),
    "lite_none": Entry(partial(_lite, lite_scalar="none"), "MPT-lite, static", shared=False),
    "lite_diag": Entry(partial(_lite, make=MPTLiteDiagonal), "MPT-lite, diagonal readout", shared=False),
    # ours
    "mpt_euclidean": Entry(
        lambda o: MPTEuclidean(o.mpt), "MPT, Euclidean readout (ours)", shared=False, extension=True
    ),
    "full_space": Entry(partial(_mpt, extension="full_space"), "full-space shrinkage (ours)", extension=True),
    "difference": Entry(partial(_mpt, extension="difference"), "measured difference (ours)", extension=True),
    "mpt_mahalanobis": Entry(
        partial(_mpt, metric="mahalanobis"), "weights fitted in Mahalanobis distance (ours)", extension=True
    ),
}


def entry(name: str) -> Entry:
    """Return the registry line of a method.

    Raises:
        InputError: unknown name.
    """
    return METHODS[choose("method", name, METHODS)]
