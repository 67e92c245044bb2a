"""The one-shot protocol in four steps: train_clients -> client_gaussians -> aggregate -> run_tasks.

    preset paper   round 1  server -> clients   seed of the anchors
                   round 1  client -> server    class Gaussians: the one uplink
    preset code    round 1  client -> server    encoder
                   round 2  server -> clients   mean encoder
                   round 2  client -> server    class Gaussians under it: a second uplink

A run's ledger refuses a further uplink. The initial encoder counts as shared beforehand. Steps depend on the
options of their part and of the parts before it (``PARTS`` in :mod:`fedlib.methods.vcl.presets`), so a caller can
train clients once for many settings of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.features.gaussian import ClassGaussian
from fedlib.federation.ledger import SERVER, Ledger
from fedlib.federation.model_state import State
from fedlib.methods.continual.metrics import AccuracyMatrix
from fedlib.methods.vcl import messages
from fedlib.methods.vcl.client import Public, TrainedClient, train_client_ce, train_client_vi
from fedlib.methods.vcl.continual import HeadRun, run_tasks
from fedlib.methods.vcl.evaluation import evaluate
from fedlib.methods.vcl.feature_vi import fit_feature_vi
from fedlib.methods.vcl.inputs import FeatureData, Labelled, balanced_rows, output_dim, unit_features
from fedlib.methods.vcl.moments import fit_moments
from fedlib.methods.vcl.niw import fit_niw
from fedlib.methods.vcl.presets import Options
from fedlib.methods.vcl.server import GlobalModel, aggregate
from fedlib.methods.vcl.shared_space import ANCHORED, anchors, average_encoders

Encoders = Callable[[int], nn.Module]
"""From a client id (or ``SERVER``) to a new encoder, images -> (B, d), with the shared initial weights.

Clients may differ in architecture."""


@dataclass(frozen=True)
class Outcome:
    """Everything that a run of the whole protocol gives.

    Attributes:
        clients: after their training, by id.
        gaussians: what the server received, by client and class.
        model: the server's model.
        run: the heads.
        evaluations: accuracies by encoder of the test images: ``avg``, ``frozen``, ``ensemble``, or ``client 0``
            and so on.
        ledger: what was sent.
    """

    clients: dict[int, TrainedClient]
    gaussians: dict[int, dict[int, ClassGaussian]]
    model: GlobalModel
    run: HeadRun
    evaluations: dict[str, AccuracyMatrix]
    ledger: Ledger


def train_clients(
    data: Mapping[int, Labelled],
    encoders: Encoders,
    options: Options,
    seed: int,
    num_classes: int,
    public: Labelled | None = None,
) -> dict[int, TrainedClient]:
    """Train every client on its own data. Clients without samples take no part.

    Args:
        data: by client id.
        encoders: see :data:`Encoders`.
        options: of the step ``clients``.
        seed: of the run.
        num_classes: C.
        public: images that all clients have, for the shared space ``pubdata``.

    Raises:
        InputError: no client with a sample, ``pubdata`` without public images, or as the client's training.
        FloatingPointError: as the client's training.
    """
    clients = [k for k in sorted(data) if len(data[k])]
    if not clients:
        raise InputError(f"no training sample: clients {sorted(data) or '(none)'} all have 0")
    shared = None
    if options.shared_space == "pubdata":
        if public is None or not len(public):
            count = 0 if public is None else len(public)
            raise InputError(f"shared_space is 'pubdata' with {count} public images; allowed: at least one")
        shared = Public(public, unit_features(encoders(SERVER), public))
    trained = {}
    for k in clients:
        encoder = encoders(k)
        if options.objective == "ce":
            trained[k] = train_client_ce(
                data[k], encoder, options, client=k, seed=seed, num_classes=num_classes, public=shared
            )
        else:
            held = None
            if options.shared_space in ANCHORED:
                held = anchors(num_classes, output_dim(encoder, data[k]), seed)
            trained[k] = train_client_vi(
                data[k],
                encoder,
                options,
                client=k,
                seed=seed,
                num_classes=num_classes,
                anchors=held,
                public=shared,
            )
    return trained


def client_gaussians(
    clients: Mapping[int, TrainedClient],
    data: Mapping[int, Labelled],
    encoders: Encoders,
    options: Options,
    seed: int,
    ledger: Ledger,
) -> dict[int, dict[int, ClassGaussian]]:
    """Return the class Gaussians as the server receives them, and note all messages of the protocol.

    Args:
        clients: from :func:`train_clients`.
        data: by client id.
        encoders: as for the training.
        options: of the steps ``clients`` and ``gaussians``, and ``eval_encoder``.
        seed: of the run.
        ledger: for the messages.

    Raises:
        InputError: encoders that cannot be averaged, features that are not finite, or messages that are not valid.
    """
    round = 1
    average: State | None = None
    if options.shared_space == "avg":
        for k in sorted(clients):
            ledger.send(k, SERVER, 1, "encoder", clients[k].encoder)
        average = _average(clients)
        round = 2
        for k in sorted(clients):
            ledger.send(SERVER, k, 2, "encoder", average)
    received = {}
    for k in sorted(clients):
        if options.shared_space in ANCHORED:
            ledger.send(SERVER, k, 1, "recipe", {"seed": torch.tensor(seed)})
        encoder = encoders(k)
        encoder.load_state_dict(clients[k].encoder if average is None else average)
        own = _source(clients[k], data[k], encoder, options, seed)
        own = {c: q for c, q in own.items() if q.count >= options.min_count}
        message = messages.pack(own, messages.form_of(options), options.wire)
        ledger.send(k, SERVER, round, "gaussians", message)
        if options.evaluated_by == "ensemble" or (average is None and options.evaluated_by == "avg"):
            ledger.send(k, SERVER, round, "encoder", clients[k].encoder)
        received[k] = messages.unpack(message)
    return received


def client_features(
    clients: Mapping[int, TrainedClient], data: Mapping[int, Labelled], encoders: Encoders, options: Options
) -> dict[int, Tensor]:
    """Return each client's training features of length 1 (n_k, d), in the shared space: for diagnostics."""
    average = _average(clients) if options.shared_space == "avg" else None
    return {k: unit_features(_loaded(encoders, clients, k, average), data[k]) for k in sorted(clients)}


def test_features(
    clients: Mapping[int, TrainedClient], test: Labelled, encoders: Encoders, options: Options
) -> dict[str, Tensor]:
    """Return the test features of length 1 (N, d) under each encoder that the options evaluate with.

    Returns:
        By name: ``avg``, ``frozen``, or ``client 0`` and so on.
    """
    if options.evaluated_by in ("avg", "frozen"):
        average = _average(clients) if options.evaluated_by == "avg" else None
        first = min(clients)
        return {options.evaluated_by: unit_features(_loaded(encoders, clients, first, average), test)}
    return {f"client {k}": unit_features(_loaded(encoders, clients, k, None), test) for k in sorted(clients)}


def evaluate_encoders(
    run: HeadRun,
    features: Mapping[str, Tensor],
    labels: np.ndarray,
    options: Options,
    tasks: Sequence[Sequence[int]] | None = None,
) -> dict[str, AccuracyMatrix]:
    """Evaluate the heads under each encoder of :func:`test_features`, or under all together (``ensemble``).

    ``tasks`` are those of :func:`fedlib.methods.vcl.evaluation.evaluate`.
    """
    if options.evaluated_by == "ensemble":
        return {"ensemble": evaluate(run, dict(enumerate(features.values())), labels, tasks)}
    return {name: evaluate(run, z, labels, tasks) for name, z in features.items()}


def run_vcl(
    data: Mapping[int, Labelled],
    test: Labelled,
    encoders: Encoders,
    tasks: Sequence[Sequence[int]],
    options: Options,
    seed: int,
    num_classes: int,
    public: Labelled | None = None,
) -> Outcome:
    """Run the whole protocol once; arguments and errors as those of its steps."""
    ledger = Ledger(options.uplinks)
    clients = train_clients(data, encoders, options, seed, num_classes, public)
    gaussians = client_gaussians(clients, data, encoders, options, seed, ledger)
    model = aggregate(gaussians, num_classes, options)
    run = run_tasks(model, tasks, options, seed)
    features = test_features(clients, test, encoders, options)
    evaluations = evaluate_encoders(run, features, np.asarray(test.labels), options)
    return Outcome(clients, gaussians, model, run, evaluations, ledger)


def _source(
    client: TrainedClient, data: Labelled, encoder: nn.Module, options: Options, seed: int
) -> dict[int, ClassGaussian]:
    """Return a client's own class Gaussians in the shared space."""
    if options.source == "proxy" and options.shared_space != "avg":
        return client.proxies
    z = unit_features(encoder, data)
    labels = np.asarray(data.labels)
    if options.source == "proxy":
        # the proxies belong to the client's own encoder: they are fitted again, on features of the mean encoder
        fixed = {"objective": "vi", "shared_space": "frozen", "trained": "none", "eval_encoder": "auto"}
        again = options.changed(**fixed)
        return train_client_vi(
            FeatureData(z, labels),
            nn.Identity(),
            again,
            client=client.client,
            seed=seed,
            num_classes=len(client.counts),
        ).proxies
    y = torch.from_numpy(labels).long()
    if options.source == "niw":
        return fit_niw(z, y)
    if options.source == "feature_vi":
        return fit_feature_vi(
            z,
            y,
            recipe=options.vi_recipe,
            steps=options.vi_steps,
            lr=options.vi_lr,
            seed=seed,
            client=client.client,
        ).gaussians
    if options.resampled:
        rows = balanced_rows(labels, seeds.torch_generator(seed, "vcl/resample", client.client))
        z, y = z[rows], y[rows]
    return fit_moments(
        z,
        y,
        covariance=options.covariance,
        shrink=options.shrink,
        ridge=options.ridge,
        single=options.single,
        counts=client.counts,
    )


def _average(clients: Mapping[int, TrainedClient]) -> State:
    return average_encoders({k: client.encoder for k, client in clients.items()})


def _loaded(
    encoders: Encoders, clients: Mapping[int, TrainedClient], client: int, average: State | None
) -> nn.Module:
    encoder = encoders(client)
    encoder.load_state_dict(clients[client].encoder if average is None else average)
    return encoder
