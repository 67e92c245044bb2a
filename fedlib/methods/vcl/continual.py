"""The continual stage at the server: one head, tasks in turn, synthetic replay and distillation (section 3.4).

The encoder never moves and the server has the Gaussians of all classes from the start: a task only reveals its
classes to the head. :func:`joint` is therefore the reference: one head trained once on all classes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.features.gaussian import ClassGaussian, Mixture, matched
from fedlib.federation.model_state import State
from fedlib.methods.vcl.footnote import fit_new_classes
from fedlib.methods.vcl.head import GrowingHead, kd_loss
from fedlib.methods.vcl.presets import HeadInit, Options
from fedlib.methods.vcl.server import GlobalModel, class_sizes, synthesise

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class HeadRun:
    """The heads after each task.

    Attributes:
        tasks: classes of each task.
        heads: tensors of the head after each task; see :meth:`GrowingHead.to_tensors`.
        losses: mean loss of the last epoch of each task; NaN for a task without features.
        kind: of the head.
        scale: of a cosine head.
    """

    tasks: tuple[tuple[int, ...], ...]
    heads: tuple[State, ...]
    losses: tuple[float, ...]
    kind: str
    scale: float

    def head(self, task: int) -> GrowingHead:
        """Return the head after ``task``, from 0."""
        return GrowingHead.from_tensors(self.heads[task], self.kind, self.scale)  # type: ignore[arg-type]

    def to_tensors(self) -> State:
        """Return heads and losses as tensors by name, for storage."""
        tensors = {f"{t}/{name}": x for t, head in enumerate(self.heads) for name, x in head.items()}
        return tensors | {"losses": torch.tensor(self.losses, dtype=torch.float64)}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], tasks: Sequence[Sequence[int]], options: Options
    ) -> HeadRun:
        """Undo :meth:`to_tensors`."""
        names = ("classes", "weight", "bias")
        heads = tuple({name: tensors[f"{t}/{name}"] for name in names} for t in range(len(tasks)))
        losses = tuple(tensors["losses"].tolist())
        return cls(tuple(map(tuple, tasks)), heads, losses, options.head, options.head_scale)


def run_tasks(
    model: GlobalModel, tasks: Sequence[Sequence[int]], options: Options, seed: int, device: str = "cpu"
) -> HeadRun:
    """Train the head on the tasks in turn and return it after each.

    A class that no client sent gets a row of zeros and no features; a task of such classes changes nothing else.

    Args:
        model: the server's model.
        tasks: classes of each task, disjoint.
        options: of the step ``server``.
        seed: of the run.
        device: where the head is trained; features are drawn on the CPU.

    Raises:
        InputError: an empty task, a class twice or out of range.
        FloatingPointError: a head that is not finite, naming the task.
    """
    check_tasks(tasks, len(model.mixtures))
    generators = list(model.mixtures)
    head = GrowingHead(model.dim, options.head, options.head_scale).to(device)
    if options.head_scope == "all":
        everything = [c for task in tasks for c in task]
        head.expand(everything, _initial_rows(generators, everything, options.head_init, model.dim))
    optimizer = _optimizer(head, options) if options.optimizer_state == "keep" else None
    fitted: dict[int, ClassGaussian] = {}
    heads, losses = [], []
    for t, task in enumerate(tasks):
        old = [c for earlier in tasks[:t] for c in earlier]
        teacher = copy.deepcopy(head) if t else None
        current = synthesise(
            model.mixtures,
            class_sizes(model, task, options.synthetic_per_class, "prior"),
            seeds.torch_generator(seed, "vcl/synthesis", t, "current"),
        )
        replay = synthesise(
            generators,
            class_sizes(model, old, options.replay_per_class, options.replay_weighting),
            seeds.torch_generator(seed, "vcl/synthesis", t, "replay"),
        )
        if options.head_scope == "seen":
            head.expand(task, _initial_rows(generators, task, options.head_init, model.dim))
        if options.footnote != "off" and len(current[1]):
            new = {c: matched(q) for c in task if (q := model.mixtures[c]) is not None}
            earlier = [fitted[c] for c in old if c in fitted]
            fitted |= (own := fit_new_classes(*current, new, earlier, options, seed=seed, task=t))
            _set_rows(head, own)
            if options.footnote == "replace":
                for c, fit in own.items():
                    generators[c] = Mixture((fit,))
        loss = float("nan")
        if len(current[1]):
            order = seeds.torch_generator(seed, "vcl/head", t)
            loss = train_head(
                head, optimizer or _optimizer(head, options), current, replay, teacher, options, order
            )
        if not all(torch.isfinite(p).all() for p in head.parameters()):
            raise FloatingPointError(
                f"task {t + 1}: the head is not finite; a smaller head_lr than {options.head_lr} may help"
            )
        heads.append(head.to_tensors())
        losses.append(loss)
    return HeadRun(tuple(map(tuple, tasks)), tuple(heads), tuple(losses), options.head, options.head_scale)


def joint(
    model: GlobalModel, tasks: Sequence[Sequence[int]], options: Options, seed: int, device: str = "cpu"
) -> HeadRun:
    """Return the head of one training on the classes of all tasks together: the upper bound of the stage."""
    return run_tasks(model, [[c for task in tasks for c in task]], options, seed, device)


def train_head(
    head: GrowingHead,
    optimizer: torch.optim.Optimizer,
    current: Pair,
    replay: Pair,
    teacher: GrowingHead | None,
    options: Options,
    generator: torch.Generator,
) -> float:
    """Train the head on one task in place and return the mean loss of the last epoch.

    Each step takes one batch of the current features and one of the replayed ones. The latter are cycled over
    all epochs, so that each is used as often as any other, give or take one. Each expectation of (7.1) is the
    mean over its batch.

    Args:
        head: with rows for all classes of both sets.
        optimizer: of its parameters.
        current: features (M, d) of length 1 and classes (M,) of the new classes.
        replay: those of the old classes; may be empty.
        teacher: the head before the task; not changed. Its rows are the first rows of ``head``.
        options: of the step ``server``.
        generator: of the order.
    """
    device = head.weight.device
    z, y = current[0].to(device), head.rows_of(current[1]).to(device)
    old_z, old_y = replay[0].to(device), head.rows_of(replay[1]).to(device)
    size = options.head_batch_size
    steps = -(-len(y) // size)
    distil = teacher is not None and len(old_y) > 0 and options.kd_weight > 0
    old_logits = torch.empty(0)
    if distil and teacher is not None:
        with torch.no_grad():
            old_logits = teacher(old_z)
    cycle = _Cycle(len(old_y), generator)
    value = torch.zeros((), device=device)
    for _ in range(options.head_epochs):
        value = torch.zeros((), device=device)
        order = torch.randperm(len(y), generator=generator)
        parts = [z[order].split(size), y[order].split(size)]
        if len(old_y):
            rows = cycle.take(steps * size)
            parts += [old_z[rows].split(size), old_y[rows].split(size)]
            if distil:
                parts += [old_logits[rows].split(size)]
        for batch in zip(*parts):
            optimizer.zero_grad(set_to_none=True)
            n = len(batch[1])
            logits = head(torch.cat([batch[0], batch[2]]) if len(old_y) else batch[0])
            # (7.1)  E_cur[CE] + E_rep[CE] + lambda_KD T^2 E_rep[KL(softmax(h_t-1 / T) || softmax(h_t[old] / T))]
            loss = functional.cross_entropy(logits[:n], batch[1])
            if len(old_y) and options.replay_ce:
                loss = loss + functional.cross_entropy(logits[n:], batch[3])
            if distil:
                known = batch[4].shape[1]
                loss = loss + options.kd_weight * kd_loss(
                    logits[n:, :known], batch[4], options.kd_temperature
                )
            loss.backward()
            optimizer.step()
            value += loss.detach()
    return float(value) / steps


def check_tasks(tasks: Sequence[Sequence[int]], num_classes: int) -> None:
    """Refuse tasks that are empty, share a class or name a class that does not exist.

    Raises:
        InputError: naming the task.
    """
    seen: set[int] = set()
    if not tasks:
        raise InputError("there are 0 tasks; allowed: at least one")
    for t, task in enumerate(tasks):
        if not task:
            raise InputError(
                f"task {t + 1} of {len(tasks)} has no class; allowed: at most as many tasks as classes"
            )
        wrong = [c for c in task if not 0 <= c < num_classes or c in seen]
        if wrong or len(set(task)) < len(task):
            raise InputError(
                f"task {t + 1} has the classes {list(task)}; allowed: 0 to {num_classes - 1}, each class once"
            )
        seen |= set(task)


class _Cycle:
    """The rows 0 ... n - 1 in random order, then all of them again in another one, without end."""

    def __init__(self, n: int, generator: torch.Generator) -> None:
        self._n, self._generator = n, generator
        self._rest = torch.empty(0, dtype=torch.int64)

    def take(self, count: int) -> Tensor:
        """Return the next ``count`` rows, int64."""
        parts = [self._rest]
        while sum(map(len, parts)) < count:
            parts.append(torch.randperm(self._n, generator=self._generator))
        rows = torch.cat(parts)
        self._rest = rows[count:]
        return rows[:count]


def _optimizer(head: GrowingHead, options: Options) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        head.parameters(), lr=options.head_lr, weight_decay=options.head_weight_decay, fused=True
    )


def _initial_rows(
    mixtures: Sequence[Mixture | None], classes: Sequence[int], init: HeadInit, dim: int
) -> Tensor:
    """Return the directions of the class means, (len(classes), d); zeros for a class that no client sent."""
    rows = torch.zeros(len(classes), dim)
    for i, c in enumerate(classes):
        q = mixtures[c]
        if q is None or init == "zero":
            continue
        if init == "mixture":
            centre = q.mean()
        else:  # zero vectors of clients without the class, which the code averages too, change the length only
            centre = torch.stack([part.mean.double() for part in q.components]).mean(0)
        rows[i] = functional.normalize(centre, dim=0).float()
    return rows


def _set_rows(head: GrowingHead, gaussians: Mapping[int, ClassGaussian]) -> None:
    labels = torch.tensor(sorted(gaussians))
    means = torch.stack([gaussians[int(c)].mean for c in labels])
    with torch.no_grad():
        head.weight[head.rows_of(labels)] = functional.normalize(means, dim=1).to(head.weight)
