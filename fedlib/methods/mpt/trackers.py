"""Every method that the MPT pages compare, behind the interface of ``tracking``; ``METHODS`` is the registry.

To add one: write its mathematics in a file of its own, a :class:`Tracker` here, and a line in ``METHODS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedlib import seeds
from fedlib.errors import InputError, choose
from fedlib.features import symmetric
from fedlib.features.moments import ClassMoments
from fedlib.methods.mpt import lite
from fedlib.methods.mpt.baselines import ccvr, icarl, ldc, sdc
from fedlib.methods.mpt.options import MPTOptions
from fedlib.methods.mpt.reconstruction import Reconstruction, Record, depart, reconstruct
from fedlib.methods.mpt.tracking import Native, Outcome, Round, State, Tracker, Vehicle

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
    ccvr: ccvr.CCVR = field(default_factory=ccvr.CCVR)
    ldc: ldc.LDC = field(default_factory=ldc.LDC)
    sdc_sigma_rel: float = 0.3
    exemplars: int = icarl.EXEMPLARS


# --- MPT ------------------------------------------------------------------------------------------------------


class MPT(Tracker):
    """The full method: affine weights, transported residual, measured residual, reliability."""

    name: ClassVar[str] = "mpt"
    sends_scatter: ClassVar[bool] = True

    def __init__(self, options: MPTOptions, *, part: Literal["all", "in_span"] = "all") -> None:
        self.options, self.part = options, part
        self.record: Record | None = None
        self.excess: float | None = None

    def departure(self, everyone: Round, staying: Round, sent: Sequence[State]) -> None:
        """Store weights, residual and covariance."""
        self.record = depart(
            everyone.rare_class,
            staying.means,
            everyone.rare_mean,
            self.options,
            covariance=self.covariance(staying),
            energy=self.energy(staying, sent),
        )

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return the reconstructed prototype."""
        if self.record is None:
            raise InputError(f"{self.name} was asked to follow a departure that it did not see")
        found = reconstruct(
            self.record,
            server.means,
            server.count,
            self.options,
            covariance=self.covariance(server),
            energy=self.energy(server, sent),
            excess=self.excess,
        )
        self.excess = found.excess
        vectors = {"in_span": found.in_span, "residual": found.residual, "predicted": found.predicted}
        if found.measured is not None:
            vectors["measured"] = found.measured
        return Outcome(
            prototype=found.in_span if self.part == "in_span" else found.prototype,
            details=_details(found),
            vectors=vectors,
        )

    def covariance(self, server: Round) -> Tensor | None:
        """Return what the residual is transported by."""
        return server.covariance

    def energy(self, server: Round, sent: Sequence[State]) -> float | None:
        """Return the number that MPT-lite scales by instead."""
        return None


class MPTLite(MPT):
    """The scalar version: one number instead of a covariance, Euclidean readout."""

    name: ClassVar[str] = "mpt_lite"
    native: ClassVar[Native] = "euclidean"
    sends_scatter: ClassVar[bool] = False

    def downlink(self, server: Round) -> State:
        """Return the prototypes, which vehicles need to measure their spread beside them."""
        return {"prototypes": server.basis.float()} if self._inside else {}

    def uplink(self, vehicle: Vehicle, received: State, kept: State) -> State:
        """Return the one number."""
        energy = lite.client_energy(
            vehicle.moments, vehicle.features, vehicle.labels, received.get("prototypes"),
            self.options.lambda_rel,
        )  # fmt: skip
        return {"energy": torch.tensor(energy, dtype=torch.float32)}

    def floats_up(self, classes: int, dim: int, samples: int) -> int:
        """Return C_k (d + 1) + 1."""
        return super().floats_up(classes, dim, samples) + 1

    @property
    def _inside(self) -> bool:
        return lite.in_complement(self.options.lite_scalar)

    def covariance(self, server: Round) -> Tensor | None:
        """Return None: no covariance is sent."""
        return None

    def energy(self, server: Round, sent: Sequence[State]) -> float | None:
        """Return the spread of all vehicles together."""
        energies = [float(message["energy"]) for message in sent]
        basis = server.basis.float() if self._inside else None  # as it was sent
        return lite.merged_energy(energies, server.parts, basis, self.options.lambda_rel)


# --- prototypes without a model of drift ----------------------------------------------------------------------


class Frozen(Tracker):
    """The prototype of the departure, kept."""

    name: ClassVar[str] = "frozen"
    compensates: ClassVar[str] = "no"

    def departure(self, everyone: Round, staying: Round, sent: Sequence[State]) -> None:
        """Store the prototype."""
        self.prototype = everyone.rare_mean.clone()

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return phat_t = p_{t0}."""
        return Outcome(prototype=self.prototype)


class ReEstimation(Tracker):
    """NCM re-estimation: the mean of the samples that remain; the last value when none do."""

    name: ClassVar[str] = "ncm"
    compensates: ClassVar[str] = "no"

    def departure(self, everyone: Round, staying: Round, sent: Sequence[State]) -> None:
        """Store the prototype."""
        self.prototype = everyone.rare_mean.clone()

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return phat_t = m_t."""
        if server.count:
            self.prototype = server.rare_mean.clone()
        return Outcome(prototype=self.prototype)


class Oracle(Tracker):
    """The mean of all rare samples, the departed ones included, under the current backbone: a reference."""

    name: ClassVar[str] = "oracle"
    compensates: ClassVar[str] = "reference"

    def __init__(self) -> None:
        self.prototype: Tensor | None = None  # set by the experiment, which alone can know it

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return p*_t."""
        if self.prototype is None:
            raise InputError("the oracle's prototype is not set")
        return Outcome(prototype=self.prototype)


class NoDeparture(Tracker):
    """The class means in the run in which nobody leaves: a reference."""

    name: ClassVar[str] = "no_departure"
    compensates: ClassVar[str] = "reference"

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return the mean of all samples."""
        return self.before(server, sent)


# --- drift compensation ---------------------------------------------------------------------------------------


class SDC(Tracker):
    """Semantic drift compensation, from pairs in one place or from the vehicles' sums: the same result.

    Args:
        sigma_rel: bandwidth relative to the features' length.
        chain: move the last prototype from round to round; else that of the departure, by pairs (f_t0, f_t).
        federated: send two sums instead of all pairs.
    """

    name: ClassVar[str] = "sdc"
    native: ClassVar[Native] = "euclidean"
    old_model: ClassVar[bool] = True

    def __init__(self, sigma_rel: float, *, chain: bool = True, federated: bool = False) -> None:
        self.sigma_rel, self.chain, self.federated = sigma_rel, chain, federated
        self.aggregates = federated  # pairs in one place are no sums over vehicles
        self.prototype: Tensor | None = None
        self.sigma = 0.0

    def downlink(self, server: Round) -> State:
        """Return the last prototype and the bandwidth, which the vehicles' sums need."""
        if not self.federated or self.prototype is None:
            return {}
        return {"prototype": self.prototype.float(), "sigma": torch.tensor(self.sigma, dtype=torch.float32)}

    def uplink(self, vehicle: Vehicle, received: State, kept: State) -> State:
        """Return the vehicle's pairs, or its two sums and the sum of squared lengths for the next bandwidth."""
        old, new = _pairs(vehicle, self.chain)
        squares = {"squares": new.double().square().sum().float(), "samples": torch.tensor(len(new))}
        if self.prototype is None:
            return squares
        if not self.federated:
            return {"old": old, "new": new}
        own = sdc.partial_shift(old, new, received["prototype"], float(received["sigma"]))
        return own.to_tensors() | squares

    def departure(self, everyone: Round, staying: Round, sent: Sequence[State]) -> None:
        """Store the prototype, and the bandwidth of the first pairs."""
        self.prototype = everyone.rare_mean.clone()
        self._set_bandwidth(sum(float(m["squares"]) for m in sent), sum(int(m["samples"]) for m in sent))

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return phat_{t-1} + sum omega_i delta_i / sum omega_i."""
        assert self.prototype is not None
        if self.federated:
            shift = sdc.combine(
                [
                    sdc.PartialShift(float(m["largest"]), m["numerator"].double(), float(m["denominator"]))
                    for m in sent
                ]
            )
            total, samples = sum(float(m["squares"]) for m in sent), sum(int(m["samples"]) for m in sent)
        else:
            new = torch.cat([m["new"] for m in sent])
            shift = sdc.shift(torch.cat([m["old"] for m in sent]), new, self.prototype, self.sigma)
            total, samples = float(new.double().square().sum()), len(new)
        moved = self.prototype + shift
        if self.chain:
            self.prototype = moved
            self._set_bandwidth(total, samples)
        return Outcome(prototype=moved)

    def _set_bandwidth(self, squares: float, samples: int) -> None:
        self.sigma = sdc.bandwidth(squares / max(1, samples), self.sigma_rel)

    def floats_up(self, classes: int, dim: int, samples: int) -> int:
        """Return C_k (d + 1) + 2 n_k d, or + d + 1 from sums."""
        return super().floats_up(classes, dim, samples) + (dim + 1 if self.federated else 2 * samples * dim)

    def floats_down(self, classes: int, dim: int) -> int:
        """Return C d, and d for the tracked prototype where sums are sent."""
        return super().floats_down(classes, dim) + (dim if self.federated else 0)


class LDC(Tracker):
    """Learnable drift compensation: a linear map, trained on pairs in one place or in closed form from sums.

    Args:
        options: of the trained map.
        ridge: the closed form.
    """

    name: ClassVar[str] = "ldc"
    native: ClassVar[Native] = "euclidean"
    old_model: ClassVar[bool] = True

    def __init__(self, options: ldc.LDC, *, ridge: bool = False) -> None:
        self.options, self.ridge = options, ridge
        self.aggregates = ridge  # see SDC
        self.prototype: Tensor | None = None

    def uplink(self, vehicle: Vehicle, received: State, kept: State) -> State:
        """Return the vehicle's pairs, or its sums of outer products."""
        if self.prototype is None:
            return {}
        old, new = _pairs(vehicle, chain=True)
        if not self.ridge:
            return {"old": old, "new": new}
        s_no, s_oo = ldc.sums(old, new)
        return {"s_no": s_no.float(), "s_oo": symmetric.pack(s_oo).float()}

    def departure(self, everyone: Round, staying: Round, sent: Sequence[State]) -> None:
        """Store the prototype."""
        self.prototype = everyone.rare_mean.clone()

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return g(phat_{t-1})."""
        assert self.prototype is not None
        steps = 0
        if self.ridge:
            s_no = torch.stack([m["s_no"].double() for m in sent]).sum(0)
            s_oo = symmetric.unpack(torch.stack([m["s_oo"].double() for m in sent]).sum(0))
            matrix = ldc.fit_ridge(s_no, s_oo)
        else:
            old, new = (torch.cat([m[side] for m in sent]) for side in ("old", "new"))
            matrix, steps = ldc.fit_sgd(old, new, self.options, server.seed, server.number)
        self.prototype = matrix @ self.prototype
        return Outcome(prototype=self.prototype, steps=steps)

    def floats_up(self, classes: int, dim: int, samples: int) -> int:
        """Return C_k (d + 1) + 2 n_k d, or + d^2 + d(d + 1)/2 in closed form."""
        extra = dim**2 + dim * (dim + 1) // 2 if self.ridge else 2 * samples * dim
        return super().floats_up(classes, dim, samples) + extra


# --- heads and exemplars --------------------------------------------------------------------------------------


class Head(Tracker):
    """The trained linear head, as FedAvg leaves it."""

    name: ClassVar[str] = "fedavg"
    native: ClassVar[Native] = "head"
    embeds: ClassVar[bool] = False
    sends_means: ClassVar[bool] = False
    compensates: ClassVar[str] = "no"
    aggregates = False

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return the head of the round."""
        return Outcome(head=server.head)

    before = follow


class Calibration(Tracker):
    """CCVR: the head retrained on virtual features; the trained model stays as it is."""

    name: ClassVar[str] = "ccvr"
    native: ClassVar[Native] = "head"
    compensates: ClassVar[str] = "no"
    answers_before: ClassVar[bool] = True

    def __init__(self, options: ccvr.CCVR) -> None:
        self.options = options

    def uplink(self, vehicle: Vehicle, received: State, kept: State) -> State:
        """Return the covariance of each class that the vehicle holds."""
        own = ccvr.class_gaussians(vehicle.features, vehicle.labels, vehicle.moments.num_classes)
        return ccvr.to_tensors(own)

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return the calibrated head."""
        parts = [_gaussians(part, message) for part, message in zip(server.parts, sent, strict=True)]
        merged = ccvr.merge(parts)
        draws = seeds.torch_generator(server.seed, "ccvr", "features", server.number)
        features, labels = ccvr.virtual_features(merged, self.options.samples, draws)
        weight, bias, steps = ccvr.retrain(
            *server.head, features, labels, self.options, server.seed, server.number
        )
        return Outcome(head=(weight, bias), steps=steps)

    before = follow

    def floats_up(self, classes: int, dim: int, samples: int) -> int:
        """Return C_k (d + 1) + C_k d(d + 1)/2."""
        return super().floats_up(classes, dim, samples) + classes * (dim * (dim + 1) // 2)

    def floats_down(self, classes: int, dim: int) -> int:
        """Return C (d + 1): the calibrated head."""
        return classes * (dim + 1)


class ICaRL(Tracker):
    """Nearest mean of exemplars that stay on the vehicles."""

    name: ClassVar[str] = "icarl"
    native: ClassVar[Native] = "cosine"
    sends_means: ClassVar[bool] = False  # the means of its exemplars instead
    compensates: ClassVar[str] = "partial"
    aggregates = False

    def __init__(self, exemplars: int) -> None:
        self.exemplars = exemplars
        self.rare: int | None = None

    def keep(self, vehicle: Vehicle) -> State:
        """Return the exemplars (indices into the vehicle's samples): all of the rare class, m of each other."""
        assert self.rare is not None
        chosen = []
        for label in torch.nonzero(vehicle.moments.count).flatten().tolist():
            own = torch.nonzero(vehicle.labels == label).flatten()
            size = len(own) if label == self.rare else self.exemplars
            chosen.append(own[icarl.herding(vehicle.features[own], size)])
        return {"exemplars": torch.cat(chosen) if chosen else torch.empty(0, dtype=torch.int64)}

    def uplink(self, vehicle: Vehicle, received: State, kept: State) -> State:
        """Return mean and number of the exemplars' unit features for each class that the vehicle holds."""
        if "exemplars" not in kept:
            return {}
        rows = kept["exemplars"]
        z, y = icarl.unit(vehicle.features[rows]), vehicle.labels[rows]
        count = torch.bincount(y, minlength=vehicle.moments.num_classes)
        total = torch.zeros(len(count), z.shape[1], dtype=torch.float64).index_add_(0, y, z)
        held = torch.nonzero(count).flatten()
        return {
            "class_ids": held.int(),
            "count": count[held].int(),
            "mean": (total[held] / count[held, None]).float(),
        }

    def departure(self, everyone: Round, staying: Round, sent: Sequence[State]) -> None:
        """Remember the rare class; from now on the vehicles keep exemplars."""
        self.rare = everyone.rare_class
        self.last = everyone.rare_mean.clone()

    def follow(self, server: Round, sent: Sequence[State]) -> Outcome:
        """Return the exemplars' means, weighted over vehicles, and the mean of the remaining rare samples."""
        total = torch.zeros_like(server.means)
        for message in sent:
            ids, count = message["class_ids"].long(), message["count"].double()
            total[ids] += count[:, None] * message["mean"].double()
        if server.count:
            self.last = server.rare_mean.clone()
        empty = total.abs().sum(dim=1) == 0
        means = torch.where(empty[:, None], torch.nan, total)  # CosineNCM scales to length one
        return Outcome(prototype=self.last, means=means)

    def floats_up(self, classes: int, dim: int, samples: int) -> int:
        """Return C_k (d + 1): the exemplars' means instead of the class means."""
        return classes * (dim + 1)

    def floats_down(self, classes: int, dim: int) -> int:
        """Return C d."""
        return classes * dim


# --- registry -------------------------------------------------------------------------------------------------


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


def _lite(options: TrackerOptions, **changes: object) -> Tracker:
    mine = options.mpt
    if mine.weight == "js":  # its Euclidean form: there is no covariance to measure lengths with
        mine = replace(mine, weight="js_euclid")
    return MPTLite(replace(mine, **changes))  # type: ignore[arg-type]


METHODS: dict[str, Entry] = {
    "mpt": Entry(_mpt, "MPT"),
    "mpt_lite": Entry(_lite, "MPT-lite", shared=False),
    "fedavg": Entry(lambda o: Head(), "FedAvg (head)", training="train", shared=False),
    "ccvr": Entry(lambda o: Calibration(o.ccvr), "CCVR", training="train", shared=False),
    "icarl": Entry(lambda o: ICaRL(o.exemplars), "iCaRL"),
    "sdc": Entry(lambda o: SDC(o.sdc_sigma_rel), "SDC"),
    "ldc": Entry(lambda o: LDC(o.ldc), "LDC"),
    "ncm": Entry(lambda o: ReEstimation(), "NCM re-estimation"),
    "frozen": Entry(lambda o: Frozen(), "frozen prototype"),
    "oracle": Entry(lambda o: Oracle(), "oracle"),
    "no_departure": Entry(lambda o: NoDeparture(), "no departure", training="stay"),
    # variants of the baselines
    "icarl_distil": Entry(lambda o: ICaRL(o.exemplars), "iCaRL with distillation", training="distil"),
    "head_holdout": Entry(lambda o: Head(), "FedAvg (head), rare samples held out", shared=False),
    "sdc_direct": Entry(lambda o: SDC(o.sdc_sigma_rel, chain=False), "SDC, from the departure"),
    "sdc_federated": Entry(lambda o: SDC(o.sdc_sigma_rel, federated=True), "SDC, from sums"),
    "ldc_ridge": Entry(lambda o: LDC(o.ldc, ridge=True), "LDC, closed form"),
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
    # ours
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


def _details(found: Reconstruction) -> dict[str, float]:
    return {"alpha": found.alpha, "prediction_weight": 1 - found.alpha, "refitted": float(found.refitted)}


def _pairs(vehicle: Vehicle, chain: bool) -> tuple[Tensor, Tensor]:
    """Return old and new features of a vehicle's samples of remaining classes, (n, d) each."""
    keep = vehicle.moments.pooled[vehicle.labels]
    old = vehicle.before if chain else vehicle.at_departure
    new = vehicle.features[keep]
    return (new if old is None else old[keep]), new


def _gaussians(part: ClassMoments, message: State) -> ccvr.ClassGaussians:
    """Return a vehicle's class Gaussians from its class statistics and its covariances."""
    covariance = torch.zeros(part.num_classes, part.dim, part.dim, dtype=torch.float64)
    for label, packed in zip(
        torch.nonzero(part.count).flatten().tolist(), message["covariance"], strict=True
    ):
        covariance[label] = symmetric.unpack(packed.double())
    return ccvr.ClassGaussians(part.count, part.mean, covariance)
