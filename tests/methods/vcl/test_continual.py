"""The head over the tasks: growth, replay, distillation, footnote 2, prediction scopes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import functional

from fedlib import seeds
from fedlib.data.class_tasks import task_split
from fedlib.errors import InputError
from fedlib.features.gaussian import matched
from fedlib.methods.continual.metrics import SCOPES
from fedlib.methods.vcl import continual
from fedlib.methods.vcl.continual import HeadRun, joint, run_tasks, train_head
from fedlib.methods.vcl.evaluation import evaluate, summary
from fedlib.methods.vcl.footnote import fit_new_classes
from fedlib.methods.vcl.head import GrowingHead, kd_loss
from fedlib.methods.vcl.server import class_sizes, synthesise

TASKS = ((0, 1), (2, 3), (4, 5))


def run(problem: Any, tasks: Any = TASKS, counts: Any = (30, 20, 10, 40, 5, 25), **changes: Any) -> HeadRun:
    return run_tasks(problem.model(counts), tasks, problem.options(**changes), seed=0)


def same(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_g3_distillation_with_the_factor_t_squared() -> None:
    student = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
    teacher = torch.tensor([[1.0, 1.0, 0.0]], dtype=torch.float64)
    assert kd_loss(student, teacher, 2.0).item() == pytest.approx(0.4907878599, abs=1e-9)


def test_distillation_is_least_at_the_teacher_and_pulls_old_logits_otherwise() -> None:
    teacher = torch.tensor([[1.0, 1.0, 0.0]])
    for student, still in ((teacher.clone(), True), (torch.tensor([[2.0, 0.0, -1.0]]), False)):
        student.requires_grad_()
        kd_loss(student, teacher, 2.0).backward()
        assert (student.grad.abs().max() < 1e-6) == still


def test_head_grows_and_old_rows_keep_every_bit() -> None:
    head = GrowingHead(4)
    head.expand([3, 1], torch.randn(2, 4, generator=seeds.torch_generator(0)))
    with torch.no_grad():
        head.bias.fill_(0.5)
    before = head.to_tensors()
    head.expand([7], torch.ones(1, 4))
    assert head.classes == (3, 1, 7)
    assert torch.equal(head.weight[:2], before["weight"])
    assert head.bias.tolist() == [0.5, 0.5, 0.0]
    assert head.rows_of(torch.tensor([7, 3, 1])).tolist() == [2, 0, 1]
    for classes, weight in (([1], torch.ones(1, 4)), ([8, 8], torch.ones(2, 4)), ([8], torch.ones(1, 3))):
        with pytest.raises(InputError):
            head.expand(classes, weight)
    with pytest.raises(InputError, match="labels"):
        head.rows_of(torch.tensor([2]))


def test_cosine_head_sees_directions_only() -> None:
    head = GrowingHead(3, "cosine", 14.0)
    head.expand([0, 1], torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.5, 0.0]]))
    torch.testing.assert_close(head(torch.tensor([[5.0, 0.0, 0.0]])), torch.tensor([[14.0, 0.0]]))


def test_old_rows_equal_the_old_head_before_training(problem: Any) -> None:  # property (h)
    result = run(problem, head_epochs=0, footnote="off")
    for t in (1, 2):
        assert torch.equal(result.heads[t]["weight"][: 2 * t], result.heads[t - 1]["weight"])
        assert torch.equal(result.heads[t]["bias"][: 2 * t], result.heads[t - 1]["bias"])


def test_teacher_stays_as_it_is(problem: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # property (h)
    seen: list[bool] = []
    train = continual.train_head

    def watched(head: Any, optimizer: Any, current: Any, replay: Any, teacher: Any, *rest: Any) -> float:
        before = None if teacher is None else teacher.to_tensors()
        loss = train(head, optimizer, current, replay, teacher, *rest)
        if teacher is not None:
            seen.append(same(teacher.to_tensors(), before))
        return loss

    monkeypatch.setattr(continual, "train_head", watched)
    run(problem, head_scope="all", optimizer_state="keep")
    assert seen == [True, True]


def test_new_rows_start_at_the_directions_of_the_mixtures(problem: Any) -> None:
    model = problem.model([10, 20], components=2)
    heads = {
        init: run_tasks(
            model, [(1, 0)], problem.options(head_init=init, head_epochs=0, footnote="off"), 0
        ).heads[0]["weight"]
        for init in ("mixture", "client_means", "zero")
    }
    for row, c in enumerate((1, 0)):
        expected = functional.normalize(model.mixtures[c].mean(), dim=0).float()
        torch.testing.assert_close(heads["mixture"][row], expected)
    assert (heads["zero"] == 0).all()
    torch.testing.assert_close(heads["client_means"].norm(dim=1), torch.ones(2))


def test_without_replay_it_is_finetuning(problem: Any) -> None:  # property (g)
    options = problem.options(replay_per_class=0, kd_weight=0.0, footnote="off")
    model = problem.model([20, 20, 20, 20])
    result = run_tasks(model, [(0, 1), (2, 3)], options, seed=0)
    head = GrowingHead(16)
    for t, task in enumerate([(0, 1), (2, 3)]):
        head.expand(task, functional.normalize(problem.centres()[list(task)], dim=1))
        z, y = synthesise(
            model.mixtures,
            class_sizes(model, task, 60, "prior"),
            seeds.torch_generator(0, "vcl/synthesis", t, "current"),
        )
        optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2, weight_decay=1e-4)
        order = seeds.torch_generator(0, "vcl/head", t)
        for _ in range(10):
            for rows in torch.randperm(len(y), generator=order).split(32):
                optimizer.zero_grad()
                functional.cross_entropy(head(z[rows]), head.rows_of(y[rows])).backward()
                optimizer.step()
        torch.testing.assert_close(result.heads[t]["weight"], head.weight.detach(), atol=1e-5, rtol=1e-5)


def test_distillation_without_replay_changes_nothing(problem: Any) -> None:
    a, b = (run(problem, replay_per_class=0, kd_weight=w) for w in (0.0, 1.0))
    assert same(a.to_tensors(), b.to_tensors())


def test_one_task_is_the_joint_head(problem: Any) -> None:  # property (i)
    model, options = problem.model([30, 20, 10, 40, 5, 25]), problem.options()
    one = run_tasks(model, [(0, 1, 2, 3, 4, 5)], options, seed=0)
    assert same(one.to_tensors(), joint(model, TASKS, options, seed=0).to_tensors())


def test_replay_holds_old_classes_and_batches_are_drawn_from_it(
    problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed: list[list[int]] = []
    train = continual.train_head

    def watched(head: Any, optimizer: Any, current: Any, replay: Any, *rest: Any) -> float:
        replayed.append(replay[1].unique().tolist())
        assert replay[1].numel() == 60 * len(replayed[-1])
        return train(head, optimizer, current, replay, *rest)

    monkeypatch.setattr(continual, "train_head", watched)
    run(problem)
    assert replayed == [[], [0, 1], [0, 1, 2, 3]]


def test_every_replayed_feature_is_used_equally_often_over_the_epochs(problem: Any) -> None:
    """The replay is cycled: it goes on where the epoch before ended, instead of starting again."""
    used: list[int] = []

    class Watched(GrowingHead):
        def forward(self, z: torch.Tensor) -> torch.Tensor:
            used.extend(z[z[:, 1] == 1, 2].long().tolist())
            return super().forward(z)

    old, new = torch.zeros(50, 16), torch.zeros(24, 16)
    old[:, 1], old[:, 2] = 1, torch.arange(50)  # marked as old, and numbered
    head = Watched(16)
    head.expand((0, 1), torch.zeros(2, 16))
    options = problem.options(head_epochs=7, head_batch_size=8)
    optimizer = torch.optim.SGD(head.parameters(), 0.1)
    pairs = (new, torch.ones(24, dtype=torch.int64)), (old, torch.zeros(50, dtype=torch.int64))
    continual.train_head(head, optimizer, *pairs, None, options, seeds.torch_generator(0))
    times = np.bincount(used, minlength=50)
    assert times.sum() == 7 * 24  # a batch of 8 for each of 3 batches of new features, in 7 epochs
    assert times.max() - times.min() == 1


def test_replay_keeps_what_finetuning_forgets(problem: Any) -> None:
    labels = np.arange(300) % 6
    z = problem.blobs(labels, noise=0.1).features
    # a finetuned head needs many steps to forget: the features of old classes are far from those of new ones
    kwargs = {"head_epochs": 60, "head_lr": 0.1, "head_init": "zero", "footnote": "off"}
    kept = evaluate(run(problem, **kwargs), z, labels).values["cil"]
    lost = evaluate(run(problem, replay_per_class=0, **kwargs), z, labels).values["cil"]
    assert kept[-1].mean() > 90
    assert lost[-1, 0] < kept[-1, 0] - 20


def test_distillation_alone_holds_the_old_logits(problem: Any) -> None:
    """Without cross-entropy on the replay, distillation is the only force on the old rows from old features."""
    labels = np.arange(200) % 2
    z = problem.blobs(labels, noise=0.1).features
    drift = []
    for weight in (0.0, 10.0):
        result = run(problem, replay_ce=False, kd_weight=weight, head_lr=0.1, head_epochs=30, footnote="off")
        before, after = (result.head(t)(z)[:, :2].detach().softmax(1) for t in (0, 2))
        drift.append(float((before - after).abs().mean()))
    assert drift[1] < 0.5 * drift[0]


def test_same_seed_same_bits_and_another_seed_another_head(problem: Any) -> None:
    model, options = problem.model([9] * 6), problem.options()
    heads = [run_tasks(model, TASKS, options, seed=s).to_tensors() for s in (0, 0, 1)]
    assert same(heads[0], heads[1])
    assert not torch.equal(heads[0]["0/weight"], heads[2]["0/weight"])


def test_head_of_the_code_has_all_rows_from_the_start(problem: Any) -> None:
    result = run_tasks(problem.model([9] * 6), TASKS, problem.options("code"), seed=0)
    assert [len(h["classes"]) for h in result.heads] == [6, 6, 6]


def test_footnote_starts_rows_at_the_fitted_means_and_replaces_generators(
    problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[dict[int, Any]] = []
    fit = continual.fit_new_classes

    def watched(*args: Any, **kwargs: Any) -> Any:
        fits.append(fit(*args, **kwargs))
        return fits[-1]

    monkeypatch.setattr(continual, "fit_new_classes", watched)
    started = run(problem, head_epochs=0, footnote="init")
    for t, task in enumerate(TASKS):
        rows = started.heads[t]["weight"][2 * t :]
        expected = torch.stack([functional.normalize(fits[t][c].mean, dim=0) for c in task])
        torch.testing.assert_close(rows, expected)
    a, b = run(problem, footnote="init"), run(problem, footnote="replace")
    assert torch.equal(a.heads[0]["weight"], b.heads[0]["weight"])
    assert not torch.equal(a.heads[1]["weight"], b.heads[1]["weight"])


def test_footnote_turns_new_proxies_away_from_old_ones(problem: Any) -> None:
    model = problem.model([20] * 4)
    z, y = synthesise(model.mixtures, {2: 200, 3: 200}, seeds.torch_generator(0))
    start = {c: matched(model.mixtures[c]) for c in (2, 3)}
    old = [matched(model.mixtures[c]) for c in (0, 1)]
    options = problem.options(footnote_epochs=20)
    fitted = fit_new_classes(z, y, start, old, options, seed=0, task=1)

    def nll(gaussians: dict[int, Any]) -> Tensor:
        means = torch.stack([q.mean.float() for q in (*old, gaussians[2], gaussians[3])])
        return functional.cross_entropy(z @ functional.normalize(means, dim=1).T / options.tau, y)

    assert nll(fitted) < nll(start) - 0.01


def test_tasks_of_any_order_and_size_follow_the_class_map(problem: Any) -> None:
    tasks = ((2, 3), (0, 5, 1), (4,))
    result = run(problem, tasks=tasks)
    labels = np.arange(240) % 6
    accuracy = evaluate(result, problem.blobs(labels, noise=0.1).features, labels).values
    assert (accuracy["cil"][-1] > 85).all()


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        ([], "0 tasks"),
        ([(0, 1), ()], "task 2 of 2 has no class"),
        ([(0, 1), (1, 2)], "task 2"),
        ([(0, 0)], "task 1"),
        ([(0, 6)], "allowed: 0 to 5"),
    ],
)
def test_tasks_that_make_no_split_are_refused(problem: Any, tasks: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        run(problem, tasks=tasks)


def test_more_tasks_than_classes_are_refused(problem: Any) -> None:
    with pytest.raises(InputError, match="number of classes"):
        task_split(range(3), 4)
    tasks = [tuple(part) for part in np.array_split(np.arange(3), 4)]
    with pytest.raises(InputError, match="at most as many tasks as classes"):
        run(problem, tasks=tasks, counts=(5, 5, 5))


def test_class_on_no_client_is_a_row_without_features(problem: Any) -> None:
    result = run(problem, tasks=((0, 1), (2,), (3, 4)), counts=(9, 9, 0, 9, 0))
    assert np.isnan(result.losses[1])
    assert torch.equal(result.heads[1]["weight"][:2], result.heads[0]["weight"])
    assert (result.heads[1]["weight"][2] == 0).all()
    labels = np.array([0, 1, 2, 3, 4] * 20)
    found = evaluate(result, problem.blobs(labels, noise=0.1).features, labels)
    assert found.values["taw"][2, 0] > 90
    assert found.values["cil"][2, 1] < 20


@pytest.mark.parametrize("scope", ["seen", "all"])
def test_class_incremental_never_beats_task_aware(problem: Any, scope: str) -> None:  # property (j)
    labels = np.arange(300) % 6
    z = problem.blobs(labels, noise=0.6).features
    found = evaluate(run(problem, head_scope=scope), z, labels)
    assert (found.values["cil"] <= found.values["taw"]).all()
    assert (found.values["all"] <= found.values["cil"]).all()
    if scope == "seen":
        np.testing.assert_array_equal(found.values["all"], found.values["cil"])
    last = found.values["cil"][-1]
    assert last.min() <= found.overall()["accuracy"] <= last.max()
    assert found.overall()["accuracy"] == pytest.approx(last.mean())  # equally many test samples of each task
    assert (np.triu(found.values["cil"], 1) == 0).all()
    assert found.values["taw"][-1].mean() > found.overall()["accuracy"]


def test_one_head_at_once_is_scored_on_the_same_tasks(problem: Any) -> None:
    labels = np.arange(300) % 6
    z = problem.blobs(labels, noise=0.6).features
    once = joint(problem.model([30, 20, 10, 40, 5, 25]), TASKS, problem.options(), seed=0)
    whole, by_task = evaluate(once, z, labels), evaluate(once, z, labels, TASKS)
    assert by_task.overall("cil") == whole.overall("cil")
    assert by_task.values["cil"][-1].mean() == pytest.approx(whole.overall("cil")["accuracy"])
    assert (by_task.values["taw"][-1] >= by_task.values["cil"][-1]).all()
    assert by_task.scores("taw")["avg_acc"] > whole.scores("taw")["avg_acc"]
    with pytest.raises(InputError, match=r"tasks are given for \d heads; allowed: for one"):
        evaluate(run(problem), z, labels, TASKS)


def test_test_samples_outside_the_tasks_are_left_out_and_none_is_an_error(problem: Any) -> None:
    result = run(problem, tasks=((0, 1),))
    labels = np.arange(60) % 3
    found = evaluate(result, problem.blobs(labels).features, labels)
    assert found.samples.tolist() == [40]
    with pytest.raises(InputError, match="no test sample"):
        evaluate(result, problem.blobs(labels).features, labels % 2 + 4)
    with pytest.raises(InputError, match="as many of each"):
        evaluate(result, problem.blobs(labels).features[:5], labels)


def test_scores_name_every_scope_and_the_floor(problem: Any) -> None:
    labels = np.repeat([0, 1, 2, 3], [60, 10, 10, 10])
    result = run(problem, tasks=((0, 1), (2,), (3,)))
    found = evaluate(result, problem.blobs(labels, noise=0.3).features, labels)
    scores = summary(found)
    assert found.values["taw"][-1, 1:].tolist() == [100, 100]
    assert scores["majority"] == pytest.approx(100 * 60 / 90)
    assert scores["accuracy"] == pytest.approx(found.overall()["accuracy"])
    assert scores["taw_avg_acc"] == pytest.approx(found.values["taw"][-1].mean())
    assert scores["cil_forgetting_paper"] >= 0
    single = evaluate(run(problem, tasks=((0, 1, 2, 3),)), problem.blobs(labels).features, labels)
    assert summary(single)["cil_avg_acc"] == pytest.approx(single.overall()["accuracy"])
    assert np.isnan(summary(single)["cil_bwt"])


def test_task_without_test_samples_is_refused(problem: Any) -> None:
    labels = np.arange(40) % 2
    with pytest.raises(InputError, match="task 2 has no test sample"):
        evaluate(run(problem, tasks=((0, 1), (2, 3))), problem.blobs(labels).features, labels)


def test_classes_to_come_are_no_prediction_of_the_incremental_scope(problem: Any) -> None:
    """With a head that has all rows from the start, ``cil`` masks the rows of later tasks and ``all`` does not."""
    result = run(problem, head_scope="all", head_epochs=0)
    labels = np.arange(300) % 6
    z = problem.blobs(labels, noise=0.8).features
    found = evaluate(result, z, labels)
    first = result.head(0)(z).detach()
    own = labels < 2
    said = first[own, :2].argmax(1).numpy()
    assert found.values["cil"][0, 0] == pytest.approx(100 * (said == labels[own]).mean())
    assert found.values["all"][0, 0] < found.values["cil"][0, 0]


def test_teacher_and_student_are_not_mixed_up(problem: Any) -> None:
    """The distillation term of (7.1) is KL(teacher || student): one SGD step has its gradient."""
    head, teacher = GrowingHead(16), GrowingHead(16)
    teacher.expand([0, 1], 3 * problem.centres()[:2])
    head.expand([0, 1, 2], torch.zeros(3, 16))
    z = problem.blobs(np.array([0, 0, 1])).features
    current = (problem.centres()[2:3], torch.tensor([2]))
    replay = (z, torch.tensor([0, 0, 1]))
    options = problem.options(
        head_epochs=1, head_batch_size=3, replay_ce=False, kd_weight=0.5, kd_temperature=3.0
    )
    optimizer = torch.optim.SGD(head.parameters(), lr=1.0)
    train_head(head, optimizer, current, replay, teacher, options, seeds.torch_generator(0))
    p = (teacher(z).detach() / 3).softmax(1)
    error = 0.5 - p  # softmax of the student's old rows, all 0, minus the teacher's
    # d/dw of lambda T^2 mean KL = lambda T mean (q - p) z^T; the current sample adds its cross-entropy
    distilled = 0.5 * 3 * error.T @ z / len(z)
    by_label = (1 / 3) * current[0].expand(2, -1)
    torch.testing.assert_close(head.weight[:2].detach(), -(distilled + by_label), atol=1e-5, rtol=1e-5)


def test_ensemble_of_equal_encoders_is_the_single_one(problem: Any) -> None:
    result = run(problem)
    labels = np.arange(120) % 6
    z = problem.blobs(labels, noise=0.3).features
    one, many = evaluate(result, z, labels), evaluate(result, {0: z, 1: z}, labels)
    for scope in SCOPES:
        np.testing.assert_array_equal(one.values[scope], many.values[scope])


def test_heads_are_stored_and_read_without_loss(problem: Any) -> None:
    options = problem.options(head="cosine")
    result = run_tasks(problem.model([9] * 6), TASKS, options, seed=0)
    back = HeadRun.from_tensors(load(save(result.to_tensors())), TASKS, options)
    assert same(result.to_tensors(), back.to_tensors())
    assert (back.kind, back.scale, back.tasks) == ("cosine", 10.0, TASKS)
