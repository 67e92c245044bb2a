"""The options of VCL-FPFT, and the two sets of them that matter: the paper's text and its public code.

Options are grouped by the step that uses them (``PARTS``), so that steps whose options are equal can be shared:
clients are trained once for all settings of the server.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedlib.errors import InputError, choose
from fedlib.methods.vcl.proxies import KlScale

Objective = Literal["vi", "ce"]
Sampler = Literal["shuffle", "balanced"]
BatchNorm = Literal["frozen", "affine_frozen", "free"]
Trained = Literal["auto", "all", "neck", "none"]
SharedSpace = Literal["avg", "frozen", "anchor", "proxyset", "local", "pubdata"]
EvalEncoder = Literal["auto", "avg", "frozen", "per_client", "ensemble"]
Source = Literal["proxy", "moments", "feature_vi", "niw"]
Covariance = Literal["class", "tied_total", "tied_within"]
Single = Literal["pooled", "identity"]
Recipe = Literal["ours", "code"]
Wire = Literal["float32", "float16", "bfloat16"]
Aggregation = Literal["mixture", "matched", "averaged"]
Head = Literal["linear", "cosine"]
HeadScope = Literal["seen", "all"]
HeadInit = Literal["mixture", "client_means", "zero"]
OptimizerState = Literal["reset", "keep"]
Weighting = Literal["equal", "prior"]
Footnote = Literal["off", "init", "replace"]


@dataclass(frozen=True)
class Options:
    """All options; the defaults are ``preset("paper")``.

    Client training (sections 3.2 of the paper and, for what it leaves open, our choice):

    Attributes:
        objective: ``vi`` is variational Proxy-NCA; ``ce`` cross-entropy with a linear classifier (the code).
        epochs: passes over the client's data; the last one's model is used.
        lr: step size of AdamW.
        batch_size: samples in a batch.
        weight_decay: of the encoder and the linear classifier; proxies have none, the KL is their regulariser.
        proxy_lr_factor: step size of the proxies, in units of ``lr``.
        clip: largest gradient norm; None is no limit.
        sampler: ``shuffle``, or ``balanced``: with replacement, its classes equally often (the code).
        batch_norm: ``frozen`` keeps affine parameters and running statistics; ``affine_frozen`` keeps the affine
            parameters only (the code); ``free`` keeps nothing.
        trained: part of the encoder that is trained: ``all``, ``neck`` (linear layer and LayerNorm), ``none``;
            ``auto`` is ``none`` with shared_space ``frozen`` and ``all`` otherwise.
        tau: temperature of (3.1).
        exclude_positive: classical Proxy-NCA, without the own class in the sum.
        mc_samples: draws S of the proxies in a step.
        prior_scale: sigma0; None is 1/sqrt(d).
        kl_weight: w_KL.
        kl_scale: factor of the KL in (3.3).
        init_scale: initial L = init_scale I; None is 0.1/sqrt(d).
        shared_space: what makes the clients' features comparable; see :mod:`.shared_space`.
        anchor_weight: gamma of ``anchor`` and ``pubdata``.

    From the trained client to its message:

    Attributes:
        source: where the class Gaussians come from: the ``proxy`` posterior itself, ``moments`` of the features,
            ``feature_vi`` (diagonal) or ``niw`` (closed form).
        covariance: of ``moments``: by ``class``, or one for all classes: ``tied_total`` (around the global mean,
            the code) or ``tied_within``.
        shrink: share of the mean variance that is mixed in.
        ridge: added to the diagonal.
        single: covariance of a class with one sample: ``pooled`` over the client's classes or the ``identity``.
        resampled: moments of a class-balanced resample with replacement instead of the data (the code).
        vi_recipe: of ``feature_vi``: ``ours`` converges, ``code`` is literal.
        vi_steps: Adam steps of ``feature_vi``, at most.
        vi_lr: its step size.
        wire: type of the numbers that are sent.
        min_count: classes with fewer samples at a client are not sent.

    Server:

    Attributes:
        aggregation: ``mixture`` of the clients' Gaussians; ``matched``: one Gaussian with the mixture's moments;
            ``averaged``: one Gaussian with averaged means and covariances.
        beta: share of the empirical class frequencies in the prior.
        floor, cap: bounds of the prior before it is renormalised.
        exact_clip: project onto the bounds instead, so that they hold after it.
        synthetic_per_class: features drawn for each new class, on average.
        head: ``linear``, or ``cosine`` with scale ``head_scale``.
        head_scale: s.
        head_epochs, head_lr, head_weight_decay, head_batch_size: of AdamW on the head.
        head_scope: ``seen``: the head grows with the tasks; ``all``: it has all classes from the start (the code).
        head_init: new rows: normalised mean of the ``mixture``, of the ``client_means`` without their weights (the
            code), or ``zero``.
        optimizer_state: ``reset`` at each task, or ``keep``.
        replay_per_class: features drawn for each old class.
        replay_weighting: ``equal``, or by the ``prior``.
        replay_ce: False leaves the replayed features to distillation alone.
        kd_weight: lambda_KD.
        kd_temperature: T.
        footnote: footnote 2's variational Proxy-NCA on the synthetic features of new classes: ``off``; ``init``:
            its means start the new rows; ``replace``: its Gaussians also replace the mixtures in later replay.
        footnote_epochs, footnote_lr: of its AdamW.
        eval_encoder: encoder of the test images: ``avg``, ``frozen``, ``per_client`` (each in turn), ``ensemble``
            (mean softmax; the encoders are uploaded); ``auto`` is the one that fits the shared space. ``avg`` with
            the shared space ``local`` is the control in which nothing makes the mean a common space; the encoders
            are uploaded beside the Gaussians.
    """

    objective: Objective = "vi"
    epochs: int = 50
    lr: float = 1e-4
    batch_size: int = 128
    weight_decay: float = 1e-4
    proxy_lr_factor: float = 1.0
    clip: float | None = None
    sampler: Sampler = "shuffle"
    batch_norm: BatchNorm = "frozen"
    trained: Trained = "auto"
    tau: float = 0.6
    exclude_positive: bool = False
    mc_samples: int = 5
    prior_scale: float | None = None
    kl_weight: float = 1.0
    kl_scale: KlScale = "1/N"
    init_scale: float | None = None
    shared_space: SharedSpace = "anchor"
    anchor_weight: float = 1.0

    source: Source = "proxy"
    covariance: Covariance = "class"
    shrink: float = 0.1
    ridge: float = 1e-3
    single: Single = "pooled"
    resampled: bool = False
    vi_recipe: Recipe = "ours"
    vi_steps: int = 2000
    vi_lr: float = 1e-2
    wire: Wire = "float32"
    min_count: int = 1

    aggregation: Aggregation = "mixture"
    beta: float = 0.5
    floor: float = 0.05
    cap: float = 0.25
    exact_clip: bool = False
    synthetic_per_class: int = 2000
    head: Head = "linear"
    head_scale: float = 10.0
    head_epochs: int = 100
    head_lr: float = 5e-4
    head_weight_decay: float = 1e-4
    head_batch_size: int = 128
    head_scope: HeadScope = "seen"
    head_init: HeadInit = "mixture"
    optimizer_state: OptimizerState = "reset"
    replay_per_class: int = 8000
    replay_weighting: Weighting = "equal"
    replay_ce: bool = True
    kd_weight: float = 0.2
    kd_temperature: float = 2.0
    footnote: Footnote = "init"
    footnote_epochs: int = 20
    footnote_lr: float = 1e-2
    eval_encoder: EvalEncoder = "auto"

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(Options).items():
            if get_origin(hint) is Literal:
                choose(name, getattr(self, name), get_args(hint))
        for names, ok, allowed in _RANGES:
            for name in names:
                value = getattr(self, name)
                if not _holds(ok, value):
                    raise InputError(f"{name} is {value!r}; allowed: {allowed}")
        if self.floor > self.cap:
            raise InputError(f"floor is {self.floor} and cap is {self.cap}; allowed: floor <= cap")
        self._check_combinations()

    def _check_combinations(self) -> None:
        space = self.shared_space
        for clash, message in (
            (
                self.eval_encoder == "avg" and space not in ("avg", "local"),
                f"eval_encoder is 'avg' with shared_space {space!r}; allowed: shared_space avg, and local as a "
                "control",
            ),
            (
                space == "avg" and self.eval_encoder not in ("auto", "avg"),
                f"eval_encoder is {self.eval_encoder!r} with shared_space 'avg'; allowed: avg, auto",
            ),
            (
                self.eval_encoder == "frozen" and self.trained_part != "none",
                f"eval_encoder is 'frozen' but {self.trained_part!r} of the encoder is trained; "
                "allowed: trained 'none'",
            ),
            (
                space == "frozen" and self.trained == "all",
                "trained is 'all' with shared_space 'frozen'; allowed: auto, none, neck",
            ),
            (
                self.objective == "ce" and self.source == "proxy",
                "source is 'proxy' with objective 'ce', which has no proxies; allowed: moments, feature_vi, niw",
            ),
            (
                self.objective == "ce" and space in ("anchor", "proxyset"),
                f"shared_space is {space!r} with objective 'ce', which has no proxies; "
                "allowed: avg, frozen, local, pubdata",
            ),
            (
                self.optimizer_state == "keep" and self.head_scope == "seen",
                "optimizer_state is 'keep' with head_scope 'seen'; allowed: 'reset', a growing head has new "
                "parameters",
            ),
        ):
            if clash:
                raise InputError(message)

    @property
    def trained_part(self) -> Literal["all", "neck", "none"]:
        """The part of the encoder that is trained."""
        if self.trained == "auto":
            return "none" if self.shared_space == "frozen" else "all"
        return self.trained

    @property
    def evaluated_by(self) -> Literal["avg", "frozen", "per_client", "ensemble"]:
        """The encoder of the test images."""
        if self.eval_encoder != "auto":
            return self.eval_encoder
        if self.shared_space == "avg":
            return "avg"
        return "frozen" if self.trained_part == "none" else "per_client"

    @property
    def uplinks(self) -> int:
        """Rounds in which each client sends to the server: one, or two where encoders are averaged first."""
        return 2 if self.shared_space == "avg" else 1

    def changed(self, **changes: Any) -> Options:
        """Return these options with some changed; they are checked again."""
        return dataclasses.replace(self, **changes)

    def part(self, name: str) -> dict[str, Any]:
        """Return the options of a step by name: ``clients``, ``gaussians`` or ``server``."""
        return {field: getattr(self, field) for field in PARTS[choose("part", name, PARTS)]}


def _above(low: float) -> Any:
    return lambda value: low < value < float("inf")


def _least(low: float) -> Any:
    return lambda value: low <= value < float("inf")


def _integer(low: int) -> Any:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= low


def _holds(ok: Any, value: Any) -> bool:
    try:
        return bool(ok(value))
    except TypeError:
        return False


def _within(value: float) -> bool:
    return 0 <= value <= 1


_RANGES: tuple[tuple[tuple[str, ...], Any, str], ...] = (
    (
        (
            "epochs",
            "batch_size",
            "mc_samples",
            "vi_steps",
            "min_count",
            "synthetic_per_class",
            "head_batch_size",
        ),
        _integer(1),
        "an integer >= 1",
    ),
    (("head_epochs", "replay_per_class", "footnote_epochs"), _integer(0), "an integer >= 0"),
    (
        ("lr", "proxy_lr_factor", "tau", "vi_lr", "head_scale", "head_lr", "kd_temperature", "footnote_lr"),
        _above(0),
        "above 0",
    ),
    (
        ("weight_decay", "kl_weight", "anchor_weight", "ridge", "head_weight_decay", "kd_weight"),
        _least(0),
        "at least 0",
    ),
    (("shrink", "beta", "floor", "cap"), _within, "0 to 1"),
    (("clip",), lambda value: value is None or value > 0, "above 0, or None"),
    (("prior_scale", "init_scale"), lambda value: value is None or value > 0, "above 0, or None"),
)

_NAMES = [field.name for field in dataclasses.fields(Options)]
_SECOND, _THIRD = _NAMES.index("source"), _NAMES.index("aggregation")
PARTS: dict[str, tuple[str, ...]] = {
    "clients": tuple(_NAMES[:_SECOND]),
    "gaussians": tuple(_NAMES[_SECOND:_THIRD]),
    "server": tuple(_NAMES[_THIRD:]),
}

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "code": {
        "objective": "ce",
        "sampler": "balanced",
        "batch_norm": "affine_frozen",
        "shared_space": "avg",
        "source": "moments",
        "covariance": "tied_total",
        "single": "identity",
        "resampled": True,
        "vi_recipe": "code",
        "vi_steps": 800,
        "vi_lr": 1e-3,
        "synthetic_per_class": 20_000,
        "head_scope": "all",
        "head_init": "client_means",
        "optimizer_state": "keep",
        "replay_weighting": "prior",
        "footnote": "off",
    },
}


def preset(name: str, **changes: Any) -> Options:
    """Return the options of the ``paper`` or the ``code``, with changes.

    Raises:
        InputError: unknown preset or option, or values that do not fit.
    """
    values = PRESETS[choose("preset", name, PRESETS)] | changes
    for field in changes:
        choose("option", field, _NAMES)
    return Options(**values)
