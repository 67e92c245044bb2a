"""Shared pieces of the one-shot methods: teacher, distillation losses, generator, local training."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from fedlib import models, seeds
from fedlib.data.tensors import Normalizer
from fedlib.errors import InputError
from fedlib.federation.tasks import ImageData
from fedlib.methods.oneshot import base, distillation
from fedlib.methods.oneshot.base import Problem, balanced_targets
from fedlib.methods.oneshot.ensemble import Ensemble
from fedlib.methods.oneshot.generator import Generator, new_generator
from fedlib.methods.oneshot.local_training import LocalTraining, step_decay, train_clients, train_local
from fedlib.methods.vcl.head import kd_loss


def copied(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_kd_has_the_factor_of_the_squared_temperature() -> None:
    student, teacher = (torch.tensor([v], dtype=torch.float64) for v in ([2, 0, -1], [1, 1, 0]))
    assert float(kd_loss(student, teacher, 2.0)) == pytest.approx(0.4907878599, abs=1e-9)


def test_kd_is_a_mean_over_the_batch_and_a_sum_over_classes() -> None:
    random = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 5, 4, generator=random, dtype=torch.float64)
    p, q = teacher.softmax(1), student.softmax(1)
    expected = (p * (p / q).log()).sum() / 5
    assert float(kd_loss(student, teacher, 1.0)) == pytest.approx(float(expected), abs=1e-12)
    assert float(kd_loss(teacher, teacher, 20.0)) == 0


def test_total_variation_by_hand() -> None:
    x = torch.tensor([[[[1.0, 2.0], [4.0, 8.0]]]])
    # horizontal (1, 4), vertical (3, 6), diagonals 7 and 2
    assert float(distillation.total_variation(x)) == pytest.approx(math.sqrt(17) + math.sqrt(45) + 7 + 2)
    assert float(distillation.total_variation(torch.ones(2, 3, 5, 5))) == 0


def normed(x: torch.Tensor) -> nn.Module:
    """A network whose running statistics are those of x."""
    layer = nn.BatchNorm2d(2, momentum=1.0).double()
    layer.running_mean = x.mean((0, 2, 3))
    layer.running_var = x.var((0, 2, 3), correction=0)
    return nn.Sequential(layer).eval()


def test_batch_norm_distance_is_zero_only_for_equal_statistics() -> None:
    x = torch.randn(6, 2, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    net = normed(x)
    with distillation.BatchNormDistance([net]) as distance:
        net(x)
        assert float(distance.value("sum")) == pytest.approx(0, abs=1e-12)
        net(x + 0.5)
        assert float(distance.value("sum")) == pytest.approx(math.sqrt(2) / 2)  # both means are 0.5 away
        net(2 * x)
        assert float(distance.value("sum")) > 1


def test_batch_norm_distance_is_a_sum_or_a_mean_over_clients() -> None:
    x = torch.randn(6, 2, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    nets = [normed(x), normed(x + 1), normed(2 * x)]
    values = {}
    for reduce in ("sum", "mean"):
        with distillation.BatchNormDistance(nets) as distance:
            for net in nets:
                net(x)
            values[reduce] = float(distance.value(reduce))  # type: ignore[arg-type]
    assert values["sum"] == pytest.approx(3 * values["mean"])


def test_batch_norm_distance_leaves_no_hooks_and_a_model_without_batch_norm_has_none() -> None:
    net = normed(torch.randn(4, 2, 2, 2))
    with distillation.BatchNormDistance([net]):
        pass
    assert not net[0]._forward_pre_hooks  # type: ignore[index]
    with distillation.BatchNormDistance([nn.Conv2d(1, 1, 1)]) as distance:
        assert distance.value("mean") == 0.0


def test_augmentation_shifts_each_image_alone_and_carries_gradients() -> None:
    x = torch.arange(1.0, 2 * 3 * 6 * 6 + 1).view(2, 3, 6, 6).requires_grad_()
    plain = distillation.crop_and_flip(x, 0, torch.Generator().manual_seed(0))
    for old, new in zip(x, plain):
        assert torch.equal(new, old) or torch.equal(new, old.flip(-1))
    many = x.detach()[:1].expand(64, -1, -1, -1)
    moved = distillation.crop_and_flip(many, 2, torch.Generator().manual_seed(0))
    assert len(torch.unique(moved, dim=0)) > 20
    out = distillation.crop_and_flip(x, 2, torch.Generator().manual_seed(1))
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.isin(x.detach(), out.detach()).float())


def test_ensemble_is_the_mean_of_logits_in_evaluation_mode(trained: list[models.Classifier]) -> None:
    x = torch.randn(5, 1, 8, 8)
    before = [copied(model) for model in trained]
    ensemble = Ensemble(trained).train()
    expected = torch.stack([model.eval()(x) for model in trained]).mean(0)
    assert torch.equal(ensemble(x), expected)
    assert not any(module.training for module in ensemble.modules())
    assert not any(value.requires_grad for value in ensemble.parameters())
    logits, features = ensemble.logits_and_features(x)
    assert torch.equal(logits, expected)
    assert [tuple(z.shape) for z in features] == [(5, 128)] * 2
    for model, old in zip(trained, before):
        assert all(torch.equal(value, old[name]) for name, value in model.state_dict().items())
        assert all(value.requires_grad for value in model.parameters())  # the clients' own models stay free


def test_adapted_ensemble_changes_in_its_running_statistics_only(trained: list[models.Classifier]) -> None:
    ensemble = Ensemble(trained)
    adapted, before = ensemble.adapted(), copied(ensemble)
    x = torch.randn(8, 1, 8, 8) * 3
    assert torch.equal(adapted(x), ensemble(x))
    out = adapted.adapt(x)
    assert not out.requires_grad
    changed = {n for n, value in adapted.state_dict().items() if not torch.equal(value, before[n])}
    assert changed
    assert {name.rsplit(".", 1)[1] for name in changed} == {
        "running_mean",
        "running_var",
        "num_batches_tracked",
    }
    assert all(torch.equal(value, before[name]) for name, value in ensemble.state_dict().items())
    assert not any(module.training for module in adapted.modules())


@pytest.mark.parametrize(("side", "channels"), [(8, 1), (28, 3), (30, 1)])
def test_generator_makes_images_of_the_right_shape_and_range(side: int, channels: int) -> None:
    noise = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    shown = Generator(10, channels, side, "sigmoid", 8)(noise)
    assert shown.shape == (4, channels, side, side)
    assert shown.min() >= 0
    assert shown.max() <= 1
    x = Generator(10, channels, side, "tanh", 8)(noise)
    assert torch.allclose(x.mean((0, 2, 3)), torch.zeros(channels), atol=1e-4)
    assert torch.allclose(x.var((0, 2, 3), correction=0), torch.ones(channels), atol=0.05)


def test_generator_of_the_papers_has_128_channels_on_a_quarter_of_the_side(problem: Problem) -> None:
    net = new_generator(100, problem, "tanh", 128, torch.device("cpu"), 0, "g")
    assert net.start.out_features == 128 * 2 * 2
    again = new_generator(100, problem, "tanh", 128, torch.device("cpu"), 0, "g")
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters()))


def test_targets_are_balanced() -> None:
    assert torch.bincount(balanced_targets(256, 8)).tolist() == [32] * 8
    counts = torch.bincount(balanced_targets(256, 7), minlength=7)
    assert counts.max() - counts.min() <= 1
    assert balanced_targets(2, 5).max() < 5


# --- local training --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "wanted"),
    [
        (100, [1] * 50 + [0.1] * 25 + [0.01] * 25),
        (4, [1, 1, 0.1, 0.01]),
        (3, [1, 0.1, 0.01]),
        (2, [1, 0.1]),
        (1, [1]),  # a single epoch is not one of a hundredth
    ],
)
def test_step_size_falls_to_a_tenth_at_half_and_three_quarters(epochs: int, wanted: list[float]) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule, rates = step_decay(optimizer, epochs), []
    for _ in range(epochs):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert np.allclose(rates, wanted)


def test_the_epoch_with_the_best_validation_accuracy_is_kept(
    clients: list[ImageData], problem: Problem
) -> None:
    model = models.build("cnn3_bn", num_classes=3, in_channels=1, image_size=8, seed=0)
    settings = LocalTraining(epochs=5, batch_size=16, lr=0.05)
    history = train_local(model, clients[0], settings, seed=0)
    best = max(row["validation_accuracy"] for row in history)
    order = seeds.rng(0, "validation", 0).permutation(len(clients[0]))
    held_back = clients[0].subset(order[: len(order) // 10])
    assert base.scores(model, held_back)["accuracy"] == pytest.approx(best)
    assert len(history) == 5
    assert not model.training


def test_local_training_depends_on_seed_and_client_alone(clients: list[ImageData], problem: Problem) -> None:
    settings = LocalTraining(epochs=1, batch_size=32, lr=0.05)
    torch.manual_seed(1)
    first = train_clients(["cnn3_bn"], clients, problem, settings, seed=3)
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    again = train_clients(["cnn3_bn", "cnn3_bn"], clients, problem, settings, seed=3)
    assert torch.equal(state, torch.random.get_rng_state())
    for a, b in zip(first, again):
        assert all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values()))
    assert not torch.equal(first[0].head.weight, first[1].head.weight)


def test_clients_may_have_different_architectures_and_a_single_sample(
    clients: list[ImageData], problem: Problem
) -> None:
    few = [clients[0], clients[1].subset(np.arange(1))]
    trained = train_clients(["cnn3", "cnn3_bn"], few, problem, LocalTraining(epochs=1, lr=0.01), seed=0)
    x, _ = few[0].batch(torch.arange(4))
    assert torch.isfinite(Ensemble(trained)(x)).all()


def test_a_client_with_one_class_and_a_class_on_no_client_are_legal(
    clients: list[ImageData], problem: Problem
) -> None:
    rows = [np.flatnonzero(clients[0].labels == 0), np.flatnonzero(clients[1].labels < 2)]
    few = [data.subset(own[:12]) for data, own in zip(clients, rows, strict=True)]
    trained = train_clients(["cnn3_bn"], few, problem, LocalTraining(epochs=2, lr=0.01), seed=0)
    x, _ = clients[0].batch(torch.arange(4))
    logits = Ensemble(trained)(x)
    assert logits.shape == (4, 3)
    assert torch.isfinite(logits).all()


def test_a_label_that_is_no_class_names_the_client(clients: list[ImageData], problem: Problem) -> None:
    few = Problem(2, problem.channels, problem.image_size, problem.mean, problem.std)
    with pytest.raises(InputError, match="client 0 has the label 2; allowed: 0 to 1"):
        train_clients(["cnn3"], clients, few, LocalTraining(epochs=1), 0)


def test_bad_local_training_is_refused(clients: list[ImageData], problem: Problem) -> None:
    for change in ({"epochs": 0}, {"batch_size": 0}, {"lr": 0.0}, {"validation": 1.0}, {"epochs": 1.5}):
        with pytest.raises(InputError, match=next(iter(change))):
            LocalTraining(**change)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="client 1 has 0 samples"):
        train_clients(
            ["cnn3"],
            [clients[0].subset(np.arange(4)), clients[0].subset(np.arange(0))],
            problem,
            LocalTraining(epochs=1),
            0,
        )
    with pytest.raises(InputError, match="3 architectures for 2 clients"):
        train_clients(["cnn3"] * 3, clients, problem, LocalTraining(epochs=1), 0)


def test_a_loss_that_is_not_finite_names_the_client(clients: list[ImageData], problem: Problem) -> None:
    model = models.build("cnn3", num_classes=3, in_channels=1, image_size=8, seed=0)
    with pytest.raises(FloatingPointError, match="client 7"):
        train_local(model, clients[0], LocalTraining(epochs=3, lr=1e20), seed=0, client=7)


def test_problem_wants_square_images() -> None:
    data = ImageData(np.zeros((2, 8, 9, 1), np.uint8), np.zeros(2, np.int64), Normalizer((0.5,), (0.5,)))
    with pytest.raises(InputError, match="8 x 9"):
        Problem.of(data, 2)


def test_problem_normalises_as_the_data_do(test_data: ImageData, problem: Problem) -> None:
    x, _ = test_data.batch(torch.arange(3))
    raw = torch.from_numpy(test_data.images[:3].astype(np.float32) / 255).permute(0, 3, 1, 2)
    assert torch.allclose(problem.normalise(raw), x, atol=1e-6)


def test_a_constant_predictor_is_flagged(trained: list[models.Classifier], test_data: ImageData) -> None:
    collapsed = copy.deepcopy(trained[0])
    with torch.no_grad():
        collapsed.head.bias[1] += 1e6
    assert base.scores(collapsed, test_data)["constant"]
    assert not base.scores(trained[0], test_data)["constant"]
    with pytest.raises(InputError, match="0 images"):
        base.scores(collapsed, test_data.subset(np.arange(0)))
