"""A trajectory as vehicles and server live through it again: what every method makes of each round's backbone."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlib.experiments.federated import Bench
from fedlib.experiments.mpt_scenario import LEAVING, Departure, scores, split_of
from fedlib.experiments.settings import MPTSettings
from fedlib.features.embed import embed
from fedlib.features.moments import ClassMoments
from fedlib.features.ncm import MahalanobisNCM
from fedlib.federation.messages import serialized_bytes
from fedlib.federation.rounds import Trajectory
from fedlib.methods.mpt.baselines.plain import Oracle
from fedlib.methods.mpt.decomposition import decompose
from fedlib.methods.mpt.tracking import Outcome, Round, State, Tracker, Vehicle, readout

_CHUNK = 1024  # images normalised at a time: bounds the memory of large data sets


@dataclass
class Clock:
    """Processor seconds by (method, side); side is ``client`` (all vehicles together) or ``server``."""

    seconds: dict[tuple[str, str], float] = field(default_factory=dict)

    def add(self, method: str, side: str, start: float) -> None:
        """Add the time since ``start``."""
        self.seconds[method, side] = self.seconds.get((method, side), 0.0) + time.process_time() - start


class Replay:
    """A trajectory as the vehicles live through it again: they embed their data under each round's model.

    Args:
        bench: the data.
        settings: of the experiment.
        departure: seed, class, fraction.
        training: how the trajectory was trained; with ``stay`` nobody leaves.
        trajectory: the stored models.
        timed: measure seconds in ``clock``; each method then reads the messages and merges them by itself, as if
            it were alone.
    """

    def __init__(
        self,
        bench: Bench,
        settings: MPTSettings,
        departure: Departure,
        training: str,
        trajectory: Trajectory,
        *,
        timed: bool = False,
    ) -> None:
        self.bench, self.settings, self.departure, self.trajectory = bench, settings, departure, trajectory
        self.training, self.leaves = training, training != "stay"
        self.labels = torch.tensor(bench.labels)
        self.split = [torch.tensor(indices) for indices in split_of(bench, settings, departure).clients]
        self.model = bench.build_model(departure.seed).to(settings.device)
        self.timed, self.clock = timed, Clock()

    def rows(self, trackers: Mapping[str, Tracker]) -> Iterator[dict[str, Any]]:
        """Yield the metric rows of all methods, round by round."""
        rare, last = self.departure.rare_class, self.settings.departure_round
        test_labels = self.bench.part("test").labels
        common = {
            "seed": self.departure.seed, "rare_class": rare, "remaining": self.departure.remaining,
            "backbone": self.settings.model, "training": self.training,
        }  # fmt: skip
        for view in self.views(trackers):
            server, z_test = view.server, view.test
            where = common | {"round": server.number, "phase": "after" if server.number > last else "before"}
            for name, outcome in view.outcomes.items():
                tracker = trackers[name]
                for kind, label in _readouts(tracker, outcome):
                    predicted = readout(kind, outcome, server, z_test).cpu().numpy()
                    for metric, value in scores(test_labels, predicted, rare, self.bench.num_classes).items():
                        yield {**where, "method": name, "readout": label, "metric": metric, "value": value}
            if server.number > last and self.leaves:
                for name, metric, value in _errors(view, self.settings.lambda_rel):
                    yield {**where, "method": name, "readout": "none", "metric": metric, "value": value}
                if server.number == last + 1:
                    for name, metric, value in self._costs(view, trackers):
                        yield {**where, "method": name, "readout": "none", "metric": metric, "value": value}

    def views(self, trackers: Mapping[str, Tracker], until: int | None = None) -> Iterator[View]:
        """Yield what server and vehicles have in each round, up to round ``until``, and every method's
        outcome."""
        last = self.settings.departure_round
        train, test = self.bench.part("train").images, self.bench.part("test").images
        before: Tensor | None = None
        at_departure: Tensor | None = None
        kept: dict[tuple[str, int], State] = {}
        for number in self.trajectory.rounds[1:]:
            if until is not None and number > until:
                return
            self.model.load_state_dict(self.trajectory.weights(number))
            start = time.process_time()
            z = self._embed(train)
            self.clock.add("all", "embed", start)
            gone = self.leaves and number > last
            vehicles = self._vehicles(z, before, at_departure, staying=gone)
            server = self._server(number, vehicles)
            oracle = z[self.labels == self.departure.rare_class].double().mean(0)
            outcomes, sent = {}, {}
            for name, tracker in trackers.items():
                if isinstance(tracker, Oracle):
                    tracker.prototype = oracle
                if gone:
                    start = time.process_time()
                    own = self._server(number, vehicles, tracker.sends_scatter) if self.timed else server
                    received = tracker.downlink(own)
                    self.clock.add(name, "server", start)
                    sent[name] = self._sent(tracker, name, received, vehicles, kept)
                    start = time.process_time()
                    outcomes[name] = tracker.follow(own, sent[name])
                    self.clock.add(name, "server", start)
                else:
                    answers = self._sent(tracker, name, {}, vehicles, {}) if tracker.answers_before else []
                    outcomes[name] = tracker.before(server, answers)
            yield View(server, vehicles, oracle, self._embed(test), outcomes, sent)
            if number == last and self.leaves:
                at_departure = z
                self._depart(trackers, server, z, before, kept)
            before = z

    def _depart(
        self,
        trackers: Mapping[str, Tracker],
        everyone: Round,
        z: Tensor,
        before: Tensor | None,
        kept: dict[tuple[str, int], State],
    ) -> None:
        vehicles = self._vehicles(z, before, z, staying=True)
        staying = self._server(everyone.number, vehicles)
        for name, tracker in trackers.items():
            answers = [tracker.uplink(vehicle, tracker.downlink(staying), {}) for vehicle in vehicles]
            tracker.departure(everyone, staying, answers)
            for vehicle in vehicles:
                kept[name, vehicle.id] = tracker.keep(vehicle)

    def _embed(self, images: np.ndarray) -> Tensor:
        """Return the features (N, d) float32 of images (N, H, W, C), on the CPU."""
        parts = []
        for start in range(0, len(images), _CHUNK):
            chunk = self.bench.normalizer.apply(images[start : start + _CHUNK]).to(self.settings.device)
            parts.append(embed(self.model, chunk).cpu())
        return torch.cat(parts)

    def _vehicles(
        self, z: Tensor, before: Tensor | None, at_departure: Tensor | None, *, staying: bool
    ) -> list[Vehicle]:
        """Return the vehicles present; those that stay know the rare class and keep it out of the scatter."""
        found = []
        for vehicle, indices in enumerate(self.split):
            if staying and vehicle == LEAVING:
                continue
            y = self.labels[indices]
            if self.settings.min_count > 1:  # privacy: means of too few samples stay on the vehicle
                indices = indices[
                    torch.bincount(y, minlength=self.bench.num_classes)[y] >= self.settings.min_count
                ]
                y = self.labels[indices]
            start = time.process_time()
            moments = ClassMoments(
                self.bench.num_classes, z.shape[1], leave_out=(self.departure.rare_class,) if staying else ()
            )
            moments.update(z[indices], y)
            self.clock.add("all", "moments", start)
            if self.timed:
                start = time.process_time()
                ClassMoments(self.bench.num_classes, z.shape[1], scatter=False).update(z[indices], y)
                self.clock.add("all", "means", start)
            old = None if before is None else before[indices]
            first = None if at_departure is None else at_departure[indices]
            found.append(Vehicle(vehicle, y, z[indices], moments, old, first))
        return found

    def _server(self, number: int, vehicles: Sequence[Vehicle], scatter: bool = True) -> Round:
        """Return the round as the server reads it from the vehicles' messages."""
        rare, classes = self.departure.rare_class, self.bench.num_classes
        parts = []
        for vehicle in vehicles:
            leave_out = () if bool(vehicle.moments.pooled[rare]) else (rare,)
            message = vehicle.moments.to_tensors()
            if not scatter:
                del message["scatter"]
            parts.append(ClassMoments.from_tensors(message, classes, leave_out=leave_out))
        head = self.model.head
        return Round(
            number, rare, parts, (head.weight.detach().cpu().clone(), head.bias.detach().cpu().clone()),
            self.settings.rho, self.departure.seed,
        )  # fmt: skip

    def _sent(
        self,
        tracker: Tracker,
        name: str,
        received: State,
        vehicles: Sequence[Vehicle],
        kept: Mapping[tuple[str, int], State],
    ) -> list[State]:
        start = time.process_time()
        sent = [tracker.uplink(vehicle, received, kept.get((name, vehicle.id), {})) for vehicle in vehicles]
        self.clock.add(name, "client", start)
        return sent

    def _costs(self, view: View, trackers: Mapping[str, Tracker]) -> Iterator[tuple[str, str, float]]:
        weights = {name: tensor.cpu() for name, tensor in self.model.state_dict().items()}
        model = serialized_bytes(weights)
        dim, classes = view.server.moments.dim, self.bench.num_classes
        for name, tracker in trackers.items():
            if isinstance(tracker, Oracle):
                continue
            messages = [
                tracker.message(vehicle, own)
                for vehicle, own in zip(view.vehicles, view.sent[name], strict=True)
            ]
            up = [model + serialized_bytes(message) for message in messages]
            floats = [sum(tensor.numel() for tensor in message.values()) for message in messages]
            formula = [
                tracker.floats_up(
                    int((vehicle.moments.count > 0).sum()),
                    dim,
                    int(vehicle.moments.count[vehicle.moments.pooled].sum()),
                )
                for vehicle in view.vehicles
            ]
            down = downlink_message(tracker, view.server)
            yield name, "uplink_bytes", float(np.mean(up))
            yield name, "uplink_floats", float(np.mean(floats))
            yield name, "uplink_formula", float(np.mean(formula))
            yield name, "downlink_bytes", float(model + serialized_bytes(down))
            yield name, "downlink_formula", float(tracker.floats_down(classes, dim))


@dataclass(frozen=True)
class View:
    """One round of a replay.

    Attributes:
        server: what the server knows.
        vehicles: the vehicles present.
        oracle: mean feature of all rare training samples, (d,).
        test: features of the test set, (N, d) float32.
        outcomes: of each method.
        sent: each method's own messages, in the order of the vehicles; empty before the departure.
    """

    server: Round
    vehicles: Sequence[Vehicle]
    oracle: Tensor
    test: Tensor
    outcomes: Mapping[str, Outcome]
    sent: Mapping[str, list[State]]


def downlink_message(tracker: Tracker, server: Round) -> State:
    """Return all that the server sends to a vehicle in a round, beside the model.

    Prototypes that vehicles need before they answer are not sent again with the readout.
    """
    sent = readout_message(tracker, server)
    own = tracker.downlink(server).items()
    return sent | {f"own/{key}": tensor for key, tensor in own if key not in sent}


def readout_message(tracker: Tracker, server: Round) -> State:
    """Return what the server sends so that vehicles can predict: a linear head, prototypes, or nothing."""
    shape = (len(server.means), server.moments.dim)
    if tracker.native == "head":
        return (
            {} if not tracker.sends_means else {"weight": torch.zeros(shape), "bias": torch.zeros(shape[0])}
        )
    if tracker.native in ("mahalanobis", "diagonal"):
        return {"weight": torch.zeros(shape), "bias": torch.zeros(shape[0])}
    return {"prototypes": torch.zeros(shape)}


def _readouts(tracker: Tracker, outcome: Outcome) -> list[tuple[Any, str]]:
    """Return the readouts of an outcome: kind, and the name in the table."""
    if outcome.head is not None:
        return [("head", "native")]
    return [("mahalanobis", "shared"), (tracker.native, "native")]


def _errors(view: View, lambda_rel: float) -> Iterator[tuple[str, str, float]]:
    """Yield (method, metric, value) of the distances to the oracle, measured under the same backbone."""
    server, oracle = view.server, view.oracle
    metric = MahalanobisNCM(oracle[None], server.regularised)
    for name, outcome in view.outcomes.items():
        if outcome.prototype is not None and name != "oracle":
            yield name, "prototype_error", float(metric.distances(outcome.prototype[None]).sqrt())
        if "prediction_weight" in outcome.details:
            yield name, "prediction_weight", outcome.details["prediction_weight"]
    parts = {name: outcome for name, outcome in view.outcomes.items() if outcome.vectors}
    if not parts:
        return
    # (w*, e*) = (3.3)-(3.4) applied to (P_t, p*_t)
    basis = server.basis
    best = decompose(basis, oracle, lambda_rel)
    in_span = basis @ best.weights
    size = float((basis - basis.mean(1, keepdim=True)).norm())
    for name, outcome in parts.items():
        error = float((outcome.vectors["residual"] - best.residual).norm())
        label = "combined" if name == "mpt" else name
        if name != "in_span":
            yield label, "residual_error", error
            yield label, "residual_error_relative", error / float(best.residual.norm())
    whole = parts.get("mpt")
    if whole is None:
        return
    guesses = {"barycentric": whole.vectors["in_span"]}
    if server.count:
        guesses["direct"] = basis @ decompose(basis, server.rare_mean, lambda_rel).weights
    for label, guess in guesses.items():
        error = float((guess - in_span).norm())
        yield label, "in_span_error", error
        yield label, "in_span_error_relative", error / size
    # q = sqrt(tr Sigma / n) / ||p* - b - e_pred||: noise of the few samples beside what the prediction misses
    missed = float((oracle - whole.vectors["in_span"] - whole.vectors["predicted"]).norm())
    if server.count and missed > 0:
        yield "mpt", "q", math.sqrt(float(server.covariance.trace()) / server.count) / missed
    values = torch.linalg.eigvalsh(server.regularised)
    yield "mpt", "condition", float(values[-1] / values[0])
    yield "mpt", "dead_features", float((server.covariance.diagonal() == 0).sum())
