"""What all VCL-FPFT experiments start from: data, tasks, clients, the shared initial encoder, and trained clients.

Clients are trained once for each (data, partition, seed, options of the clients), and all rows that differ at the
server alone share them. Features of the initial encoder are computed once for all rows that do not train it.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from fedlib import data, files, models, seeds
from fedlib.data import ImageSet, Normalizer
from fedlib.data.class_tasks import class_order, task_split
from fedlib.data.named_partition import named
from fedlib.data.partition import Holdings
from fedlib.data.reduced import fewer, smaller
from fedlib.errors import InputError
from fedlib.experiments.settings import VCLSettings
from fedlib.federation.ledger import SERVER
from fedlib.federation.rounds import Rounds
from fedlib.federation.tasks import ImageData
from fedlib.methods.oneshot.base import Problem
from fedlib.methods.vcl.client import TrainedClient
from fedlib.methods.vcl.inputs import FeatureData, embed_all
from fedlib.methods.vcl.pipeline import train_clients
from fedlib.methods.vcl.presets import Options, preset
from fedlib.models import Classifier, Embedder, pretrained
from fedlib.runs import Run, RunSpec, Store, Workspace

SMALLEST_CLIENT = 10  # samples: Dirichlet partitions are drawn until every client has as many


@dataclass(frozen=True)
class Scene:
    """A data set with the clients, tasks and encoders of some settings.

    Attributes:
        settings: of the experiment.
        images: the data set, reduced as the settings say.
    """

    settings: VCLSettings
    images: ImageSet

    @classmethod
    def of(cls, settings: VCLSettings) -> Scene:
        """Load the data set that ``settings`` name, and check all that can be checked without computing.

        Raises:
            InputError: unknown data set, model or option, other numbers of encoders than of clients, data that are
                not found (the message says what to do),
                more tasks than classes, or a GPU that this machine has not.
        """
        for name in {settings.model, *settings.encoders}:
            models.module_of(name)
        if len(settings.encoders) not in (0, settings.num_clients):
            raise InputError(
                f"encoders are {len(settings.encoders)}; allowed: none, or {settings.num_clients}, one for each "
                "client"
            )
        Rounds(rounds=1, seed=0, device=settings.device)
        images = data.load(settings.dataset, **settings.dataset_options)
        if settings.train_per_class is not None:
            images = fewer(images, settings.train_per_class)
        if settings.image_size is not None:
            images = smaller(images, settings.image_size)
        scene = cls(settings, images)
        scene.tasks(0)
        for name in ("paper", "code"):
            scene.options(name)
        return scene

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return len(self.images.class_names)

    @property
    def problem(self) -> Problem:
        """What the one-shot methods' server knows of the data."""
        return Problem.of(self.test, self.num_classes)

    @property
    def train(self) -> ImageData:
        """All training samples."""
        return self._part("train")

    @property
    def test(self) -> ImageData:
        """All test samples."""
        return self._part("test")

    @property
    def val(self) -> ImageData | None:
        """All validation samples, where the data have some."""
        return self._part("val") if "val" in self.images.splits else None

    def _part(self, name: str) -> ImageData:
        part = self.images.splits[name]
        channels = part.images.shape[3]
        half = Normalizer((0.5,) * channels, (0.5,) * channels)  # as the code, and FedISCA's protocol
        return ImageData(part.images, part.labels, half, self.settings.device)

    def tasks(self, seed: int) -> tuple[tuple[int, ...], ...]:
        """Return the classes of each task: in the order of the settings, else seed 0 has the natural one.

        Raises:
            InputError: more tasks than classes, or an order that does not have each class once.
        """
        order = self.settings.class_order or class_order(self.num_classes, seed)
        if sorted(order) != list(range(self.num_classes)):
            raise InputError(f"class_order is {order}; allowed: each of 0 to {self.num_classes - 1} once")
        return task_split(order, self.settings.num_tasks)

    def partition(self, name: str, seed: int) -> Holdings:
        """Return the clients' training samples; see :func:`fedlib.data.named_partition.named`.

        Raises:
            InputError: a name of another form, or a partition that is not possible.
        """
        settings = self.settings
        if name == "domain" and settings.train_per_class is not None:
            raise InputError("partition is 'domain' with train_per_class; allowed: all training samples")
        where = data.domains(settings.dataset, **settings.dataset_options) if name == "domain" else None
        return named(
            name,
            self.images.splits["train"].labels,
            settings.num_clients,
            seed,
            min_size=SMALLEST_CLIENT,
            domains=None if where is None else where["train"],
        )

    def clients(self, partition: str, seed: int) -> dict[int, ImageData]:
        """Return the clients' training samples by client id."""
        return {k: self.train.subset(rows) for k, rows in enumerate(self.partition(partition, seed).clients)}

    def backbone(self, client: int = SERVER) -> str:
        """Return the name of a client's backbone, or of the server's."""
        return (
            self.settings.encoders[client] if self.settings.encoders and client >= 0 else self.settings.model
        )

    def encoder(self, seed: int, client: int = SERVER) -> Embedder:
        """Return a client's initial encoder; clients with the same backbone have the same."""
        settings, problem, name = self.settings, self.problem, self.backbone(client)
        return models.embedder(
            name,
            dim=settings.dim,
            in_channels=problem.channels,
            image_size=problem.image_size,
            seed=seed,
            weights=weights_of(settings, name),
        ).to(settings.device)

    def classifier(self, seed: int, client: int = SERVER) -> Classifier:
        """Return a new classifier with a client's backbone or the server's, for the one-shot baselines.

        Where the settings name weights, it is a linear head on the encoder of VCL-FPFT, so that all methods start
        from the same weights and see images of the same size.
        """
        settings, problem = self.settings, self.problem
        if settings.weights is not None:
            encoder = self.encoder(seed, client)
            with seeds.torch_global(seed, "weights", "head"):
                model = Classifier(encoder, settings.dim, problem.num_classes)
            return model.to(settings.device)
        return models.build(
            self.backbone(client),
            num_classes=problem.num_classes,
            in_channels=problem.channels,
            image_size=problem.image_size,
            seed=seed,
        ).to(settings.device)

    def options(self, name: str, **changes: Any) -> Options:
        """Return a preset of VCL-FPFT at the size of the settings, with changes.

        Raises:
            InputError: unknown preset or option, or values that do not fit.
        """
        sizes = dict(self.settings.options) | (self.settings.code if name == "code" else {})
        return preset(name, **(sizes | changes))

    def check(self, options: Options) -> None:
        """Refuse options that need one architecture where the clients have several.

        Raises:
            InputError: naming the option.
        """
        if len(set(self.settings.encoders)) > 1 and options.evaluated_by in ("avg", "frozen"):
            raise InputError(
                f"eval_encoder of shared_space {options.shared_space!r} is {options.evaluated_by!r}, but the "
                f"clients' encoders are {', '.join(self.settings.encoders)}; "
                "allowed with several architectures: per_client, ensemble"
            )

    def record(self, seed: int, **further: Any) -> dict[str, Any]:
        """Return the part of a run's configuration that all runs have, and ``further``."""
        reduced = ("image_size", "train_per_class")
        names = ("dataset", "dataset_options", *reduced, "model", "encoders", "dim", "weights", "num_clients")
        return {name: getattr(self.settings, name) for name in names} | {"seed": seed} | further

    def spec(self, name: str, config: Mapping[str, Any], *modules: str) -> RunSpec:
        """Return the specification of a run on this data set."""
        backbones = dict.fromkeys((self.settings.model, *self.settings.encoders))
        own = (*map(models.module_of, backbones), *modules)
        return RunSpec(name, config, {self.settings.dataset: self.images.card.checksum}, own)


def weights_of(settings: VCLSettings, backbone: str) -> str | None:
    """Return the weights that a backbone starts from; None is random, as where torchvision has none for it."""
    module = importlib.import_module(models.module_of(backbone))
    available = settings.weights != pretrained.DOWNLOAD or hasattr(module, "TORCHVISION")
    return settings.weights if available else None


def trained_clients(
    scene: Scene, partition: str, seed: int, options: Options, folder: Path
) -> dict[int, TrainedClient]:
    """Return the clients after their training, by id; those without samples are left out.

    Args:
        scene: the data.
        partition: its name.
        seed: of this repetition.
        options: those of the step ``clients`` count.
        folder: each client is stored there as soon as it is trained, so that an interrupted run does not train it
            again; the caller removes the folder.
    """
    clients, found = scene.clients(partition, seed), {}
    for k, own in ({k: own for k, own in clients.items() if len(own)} or clients).items():
        path = folder / f"{k}.safetensors"
        if not path.exists():
            encoders = partial(scene.encoder, seed)
            client = train_clients({k: own}, encoders, options, seed, scene.num_classes)[k]
            files.write_tensors(path, client.to_tensors())
        found[k] = TrainedClient.from_tensors(files.read_tensors(path))
    return found


def client_run(scene: Scene, partition: str, seed: int, options: Options, store: Store | None = None) -> Run:
    """Return the run of the clients' training; :func:`clients_of` opens it.

    Its metrics are seed, client, epoch, metric (train_loss) and value.

    Args:
        scene: the data.
        partition: its name.
        seed: of this repetition.
        options: those of the step ``clients`` count.
        store: where runs are; None takes the default.
    """
    config = scene.record(seed, partition=partition, client_options=options.part("clients"))

    def compute(workspace: Workspace) -> None:
        folder = workspace.folder / "clients"
        trained = trained_clients(scene, partition, seed, options, folder)
        rows = [
            (seed, k, epoch + 1, "train_loss", loss)
            for k, client in trained.items()
            for epoch, loss in enumerate(client.losses)
        ]
        rows = rows or [(seed, k, 0, "train_loss", float("nan")) for k in trained]  # nothing was trained
        metrics = pd.DataFrame(rows, columns=["seed", "client", "epoch", "metric", "value"])
        tensors = {f"{k}/{n}": t for k, client in trained.items() for n, t in client.to_tensors().items()}
        workspace.finish(metrics, tensors)
        shutil.rmtree(folder)

    spec = scene.spec("vcl.clients", config, __name__)
    return (store or Store()).compute(spec, compute)


def clients_of(run: Run) -> dict[int, TrainedClient]:
    """Return the clients that a run of :func:`client_run` holds, by id."""
    parts: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in run.tensors.items():
        client, _, rest = name.partition("/")
        parts.setdefault(int(client), {})[rest] = tensor
    return {k: TrainedClient.from_tensors(parts[k]) for k in sorted(parts)}


def feature_run(scene: Scene, seed: int, store: Store | None = None) -> Run:
    """Return the run with the features of the initial encoder, not scaled; tensors ``train`` and ``test``."""
    config = scene.record(seed, features="initial encoder")

    def compute(workspace: Workspace) -> None:
        encoder = scene.encoder(seed)
        tensors = {name: embed_all(encoder, scene._part(name)).cpu() for name in ("train", "test")}
        metrics = pd.DataFrame(
            [(seed, "features", len(z)) for z in tensors.values()], columns=["seed", "metric", "value"]
        )
        workspace.finish(metrics, tensors)

    return (store or Store()).compute(scene.spec("vcl.features", config, __name__), compute)


def client_feature_data(
    scene: Scene, partition: str, seed: int, run: Run
) -> tuple[dict[int, FeatureData], FeatureData]:
    """Return the clients' training features by client id, and the test features, from :func:`feature_run`."""
    tensors = run.tensors
    labels = scene.train.labels
    own = {
        k: FeatureData(tensors["train"][torch.tensor(rows)], labels[rows])
        for k, rows in enumerate(scene.partition(partition, seed).clients)
    }
    return own, FeatureData(tensors["test"], np.asarray(scene.test.labels))
