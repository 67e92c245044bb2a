"""Settings of the experiments: one frozen model per paper, one YAML of profiles per paper.

A value comes from the profile unless a notebook parameter overrides it. Unknown names, wrong types and values
out of range are refused here, before anything is computed.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedlib.data import named_partition
from fedlib.errors import InputError, choose

Profile = Literal["smoke", "quick", "overnight", "paper"]
PROFILES: tuple[str, ...] = get_args(Profile)

Fraction = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]


class Settings(BaseModel):
    """Settings that every experiment has.

    Attributes:
        profile: the profile that the values come from.
        seeds: number of repetitions; repetition i uses seed i (0, 1, ...).
        dataset: name for ``fedlib.data.load``.
        model: name for ``fedlib.models.build``.
        num_clients: number of clients.
        device: ``cpu`` or ``cuda``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    profile: Profile
    seeds: Count
    dataset: str
    model: str
    num_clients: Count
    device: Literal["cpu", "cuda"]

    def variants(self) -> tuple[Settings, ...]:
        """Return these settings, and all further ones that they plan for single tasks, backbones or data sets."""
        return (self,)

    @classmethod
    def overridden(cls, values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
        """Return the ``values`` of a profile with ``changes`` in place of them."""
        return values | changes

    def _changed(self, changes: dict[str, Any]) -> Self:
        return type(self)(**(self.model_dump() | changes))

    def _check_changes(self, *groups: str) -> None:
        """Refuse changes by name, in the fields ``groups``, that do not make valid settings."""
        plain = self.model_dump() | {group: {} for group in groups}
        for name, changes in [item for group in groups for item in getattr(self, group).items()]:
            try:
                type(self)(**(plain | changes))
            except ValidationError as error:
                raise ValueError(f"{name}: {_explain(error, type(self))}") from None

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers_are_floats(cls, values: Any) -> Any:
        # Strict mode would refuse lr=1; a whole number is a valid float, but a bool or a string is not.
        if isinstance(values, dict):
            for name, field in cls.model_fields.items():
                if field.annotation is float and type(values.get(name)) is int:
                    values = values | {name: float(values[name])}
        return values

    @model_validator(mode="before")
    @classmethod
    def _lists_are_tuples(cls, values: Any) -> Any:
        if isinstance(values, dict):
            values = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        return values


class RoundSettings(Settings):
    """Settings of experiments with rounds of federated training.

    Attributes:
        rounds: number of communication rounds.
        local_epochs: passes over a client's data in a round.
        batch_size: samples in a training batch.
        lr: step size of the clients' SGD.
        momentum: momentum of the clients' SGD.
        weight_decay: L2 penalty of the clients' SGD.
        alpha: concentration of the Dirichlet partition; small values mean skewed clients.
        bf16: train in bfloat16 where the processor has it (results then differ from float32 runs).
    """

    rounds: Count
    local_epochs: Count
    batch_size: Count
    lr: Positive
    momentum: Annotated[float, Field(ge=0, lt=1)]
    weight_decay: Annotated[float, Field(ge=0)]
    alpha: Positive
    bf16: bool


class FoundationsSettings(RoundSettings):
    """Settings of the foundations chapters (what each page varies is a parameter of that page)."""

    participation: Fraction
    mu: Annotated[float, Field(ge=0)]


class MPTSettings(RoundSettings):
    """Settings of the MPT experiments.

    Attributes:
        dataset_options: options of the data set, see ``fedlib.data.load``.
        pixel_noise: standard deviation of noise added to all images, relative to that of their pixels; 0 is none.
        optimizer: sgd | adamw: of the clients; adamw takes no momentum.
        departure_round: last round in which the leaving client takes part.
        rare_classes: classes that are made rare, one run each; labels or class names.
        remaining_fractions: shares of the rare class's training samples that stay with the other clients.
        min_count: a vehicle withholds the statistics of classes of which it has fewer samples; 1 is the paper's.
        rho: trace-scaled ridge of the covariances, (4.1) of the method page.
        lambda_rel: ridge of the affine weights relative to the prototypes' spread, (3.5).
        transport: ot | zca | chol | pca | scalar | none: how the stored residual moves (section 5).
        complement: soft | hard: the complement that the residual is measured in (section 7).
        weight: js | js_euclid | count | count_deff | fixed: weight of the measured residual (section 8).
        ema: smoothing of the js weights over rounds, in [0, 1); 0 is none.
        lite_scalar: comp_trace | trace | spread | regress | none: the scalar of MPT-lite (section 6).
        keep_backbones: keep the model of every round after all methods were read on it. It saves the training
            when further methods are wanted; a round of ResNet-18 takes 45 MB.
        tasks: classification tasks: name and the settings that each changes.
        backbones: backbones: name and the settings that each changes.
    """

    dataset_options: dict[str, Any]
    pixel_noise: Annotated[float, Field(ge=0)]
    optimizer: Literal["sgd", "adamw"]
    departure_round: Count
    rare_classes: Annotated[tuple[Annotated[int, Field(ge=0)] | str, ...], Field(min_length=1)]
    remaining_fractions: Annotated[tuple[Fraction, ...], Field(min_length=1)]
    min_count: Count
    rho: Positive
    lambda_rel: Annotated[float, Field(ge=0)]
    transport: Literal["ot", "zca", "chol", "pca", "scalar", "none"]
    complement: Literal["soft", "hard"]
    weight: Literal["js", "js_euclid", "count", "count_deff", "fixed"]
    ema: Annotated[float, Field(ge=0, lt=1)]
    lite_scalar: Literal["comp_trace", "trace", "spread", "regress", "none"]
    keep_backbones: bool
    tasks: dict[str, dict[str, Any]]
    backbones: dict[str, dict[str, Any]]

    def for_task(self, name: str) -> MPTSettings:
        """Return the settings of one of ``tasks``.

        Raises:
            InputError: unknown task.
        """
        return self._changed(self.tasks[choose("task", name, self.tasks)])

    def for_backbone(self, name: str) -> MPTSettings:
        """Return the settings of one of ``backbones``.

        Raises:
            InputError: unknown backbone.
        """
        return self._changed({"model": name} | self.backbones[choose("backbone", name, self.backbones)])

    def variants(self) -> tuple[Settings, ...]:
        """Return these settings, those of each task, and each of them with each backbone."""
        bases = [self, *map(self.for_task, self.tasks)]
        return (*bases, *(base.for_backbone(name) for base in bases for name in self.backbones))

    @model_validator(mode="after")
    def _departure_inside_the_run(self) -> MPTSettings:
        if self.departure_round >= self.rounds:
            raise ValueError(
                f"departure_round is {self.departure_round}; allowed: below rounds = {self.rounds}, "
                "so that at least one round follows the departure"
            )
        if self.num_clients < 2:
            raise ValueError(f"num_clients is {self.num_clients}; allowed: at least 2, one of them leaves")
        return self

    @model_validator(mode="after")
    def _tasks_and_backbones_are_settings(self) -> MPTSettings:
        self._check_changes("tasks", "backbones")
        return self


class VCLSettings(Settings):
    """Settings of the VCL-FPFT experiments.

    Attributes:
        dataset_options: options of the data set, see ``fedlib.data.load``.
        image_size: side to which images are reduced, see ``fedlib.data.reduced``; None leaves them as they are.
        train_per_class: training samples of a class, at most; None takes all.
        model: backbone of the encoders and of the classifiers of the one-shot baselines.
        encoders: backbones of the clients, one each; empty: all clients have ``model``.
        dim: length d of an encoder's output.
        weights: of the initial encoder, see ``fedlib.models.embedder``; None is random.
        num_tasks: tasks T that the classes are dealt to.
        class_order: order in which classes appear; None is the natural one for seed 0 and a permutation otherwise.
        datasets: further data sets: name in the paper's tables and the settings that each changes.
        partitions: how the training samples are split over the clients, see ``fedlib.data.named_partition``.
        options: what is changed in both presets of ``fedlib.methods.vcl.presets``.
        code: what is changed further in the preset ``code``.
        classifiers: what is changed in the training of the baselines' classifiers, a
            ``fedlib.methods.oneshot.local_training.LocalTraining``.
        baselines: what is changed in the one-shot baselines, by name.
        suite: lifelonger | verma: what the continual baselines share, ``fedlib.methods.continual.harness.Suite``.
        training: what is changed in its training on a task.
        continual: what is changed in the continual baselines, by name.
        scenarios: parts of the paper with settings of their own: name and the settings that each changes.
        small: start from the baselines' small budgets, made for a CPU, instead of the papers'.
    """

    dataset_options: dict[str, Any]
    image_size: Count | None
    train_per_class: Count | None
    encoders: tuple[str, ...]
    dim: Count
    weights: str | None
    num_tasks: Count
    class_order: tuple[Annotated[int, Field(ge=0)], ...] | None
    datasets: dict[str, dict[str, Any]]
    partitions: Annotated[
        tuple[Annotated[str, Field(pattern=named_partition.PATTERN)], ...], Field(min_length=1)
    ]
    options: dict[str, Any]
    code: dict[str, Any]
    classifiers: dict[str, Any]
    baselines: dict[str, dict[str, Any]]
    suite: Literal["lifelonger", "verma"]
    training: dict[str, Any]
    continual: dict[str, dict[str, Any]]
    scenarios: dict[str, dict[str, Any]]
    small: bool

    def for_dataset(self, name: str) -> VCLSettings:
        """Return the settings of one of ``datasets``.

        Raises:
            InputError: unknown data set.
        """
        return self._changed(self.datasets[choose("data set", name, self.datasets)])

    def for_scenario(self, name: str) -> VCLSettings:
        """Return the settings of one of ``scenarios``, which plans no further ones.

        Raises:
            InputError: unknown scenario.
        """
        own = self.scenarios[choose("scenario", name, self.scenarios)]
        return self._changed({"scenarios": {}} | own)

    def variants(self) -> tuple[Settings, ...]:
        """Return these settings and those of each of ``datasets``, and the same of each of ``scenarios``."""
        further = [own for name in self.scenarios for own in self.for_scenario(name).variants()]
        return (self, *map(self.for_dataset, self.datasets), *further)

    @model_validator(mode="after")
    def _datasets_and_scenarios_are_settings(self) -> VCLSettings:
        self._check_changes("datasets", "scenarios")
        return self


class FedCKASettings(RoundSettings):
    """Settings of the FedCKA experiments on images, and of what they change for driving scenes.

    Attributes:
        dataset_options: options of the data set, see ``fedlib.data.driving``; digits have none.
        tau: threshold of FedCKA's threshold mode.
        rho: final personal share of its percentage mode, and of FedSelect and FedMC.
        ramp_rounds: rounds over which that share is reached.
        warmup_rounds: first rounds without masks. On driving scenes FedDyn and the methods whose masks only grow
            have at least a quarter of all rounds.
        inputs: training inputs that layers are scored on.
        lr_floor: step size at the end, as a share of ``lr``; it falls along half a cosine.
        optimizer: sgd | adamw: of the clients; adamw takes no momentum.
        clip: largest norm of a gradient; None is no limit.
        warm_epochs: passes over scenes of their own from which a common start is learned; 0 starts at random.
        sweeps: LiDAR sweeps of driving scenes that are joined to a frame, the key frame's own included, 1 to 10
            (nuScenes has ten from one key frame to the next); digits have none.
        scenes: what is changed for the pages on driving scenes. A setting that replaces the profile's holds
            there too.
    """

    dataset_options: dict[str, Any]
    tau: Annotated[float, Field(ge=0, le=1)]
    rho: Annotated[float, Field(ge=0, le=1)]
    ramp_rounds: Count
    warmup_rounds: Annotated[int, Field(ge=0)]
    inputs: Count
    lr_floor: Annotated[float, Field(ge=0, le=1)]
    optimizer: Literal["sgd", "adamw"]
    clip: Positive | None
    warm_epochs: Annotated[int, Field(ge=0)]
    sweeps: Annotated[int, Field(ge=1, le=10)]
    scenes: dict[str, Any]

    @classmethod
    def overridden(cls, values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
        """Return the ``values`` of a profile with ``changes`` in place of them, on driving scenes too."""
        scenes = {name: value for name, value in values["scenes"].items() if name not in changes}
        return values | {"scenes": scenes} | changes

    def for_scenes(self) -> FedCKASettings:
        """Return the settings of the pages on driving scenes."""
        return self._changed({"scenes": {}} | self.scenes)

    def variants(self) -> tuple[Settings, ...]:
        """Return these settings and those of the pages on driving scenes."""
        return (self, self.for_scenes())

    @model_validator(mode="after")
    def _scenes_are_settings(self) -> FedCKASettings:
        if self.scenes:
            try:
                self.for_scenes()
            except ValidationError as error:
                raise ValueError(f"scenes: {_explain(error, type(self))}") from None
        return self


_MODELS: dict[str, type[Settings]] = {
    "foundations": FoundationsSettings,
    "fedcka": FedCKASettings,
    "mpt": MPTSettings,
    "vcl": VCLSettings,
}


def papers() -> list[str]:
    """Return the names that ``load`` knows."""
    return list(_MODELS)


def model_for(folder: str) -> type[Settings] | None:
    """Return the settings model of a notebook folder, or None if its notebooks have no profile."""
    return _MODELS.get(folder)


def load(paper: str, profile: str, overrides: dict[str, Any] | None = None, **named: Any) -> Any:
    """Return the settings of a paper's experiments.

    Args:
        paper: ``foundations``, ``mpt`` or ``vcl``.
        profile: ``smoke``, ``quick``, ``overnight`` or ``paper``.
        overrides: settings by name that replace the profile's.
        named: the same as keywords; None means "the profile's value".

    Raises:
        InputError: unknown paper, profile or setting, or a value of the wrong type or range.
    """
    model = _MODELS[choose("paper", paper, _MODELS)]
    choose("profile", profile, PROFILES)
    changes = dict(overrides or {}) | {name: value for name, value in named.items() if value is not None}
    for name in changes:
        choose("setting", name, [field for field in model.model_fields if field != "profile"])
    try:
        return model(**(model.overridden(_profiles(paper)[profile], changes) | {"profile": profile}))
    except ValidationError as error:
        raise InputError(_explain(error, model)) from None


def profile_text(paper: str) -> str:
    """Return the commented YAML text of a paper's profiles; the comments give each value's origin."""
    choose("paper", paper, _MODELS)
    return resources.files("fedlib.experiments").joinpath("profiles", f"{paper}.yaml").read_text("utf-8")


@cache
def _profiles(paper: str) -> dict[str, dict[str, Any]]:
    # The YAML gives a common block and what each profile changes in it.
    document = yaml.safe_load(profile_text(paper))
    common = document.pop("common")
    return {name: common | (changes or {}) for name, changes in document.items()}


def _explain(error: ValidationError, model: type[Settings]) -> str:
    parts = []
    for item in error.errors():
        place = ".".join(str(step) for step in item["loc"]) or "settings"
        value = f" is {item['input']!r}" if item["loc"] else ""
        parts.append(f"{place}{value}: {item['msg'].removeprefix('Value error, ')}")
    return "; ".join(parts)
