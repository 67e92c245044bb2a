"""DAFL, DENSE, FedISCA and E-FedISCA: their losses, what they leave alone, and that they beat chance."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fedlib import models
from fedlib.errors import InputError
from fedlib.federation.tasks import ImageData
from fedlib.methods.oneshot import dafl, dense, e_fedisca, fedisca, inversion
from fedlib.methods.oneshot.base import Problem, Result
from fedlib.methods.oneshot.distillation import BatchNormDistance
from fedlib.methods.oneshot.ensemble import Ensemble

Build = Callable[[], models.Classifier]

TINY: dict[str, tuple[Callable[..., Result], Any]] = {
    "dafl": (
        dafl.dafl,
        dafl.DAFL(epochs=4, iterations=15, batch_size=48, width=16, lr_generator=0.02, lr_student=5e-3),
    ),
    "dense": (
        dense.dense,
        dense.DENSE(
            epochs=8, generator_steps=8, batch_size=48, nz=32, width=16, lr_generator=2e-2, lr_student=2e-2
        ),
    ),
    "fedisca": (
        fedisca.fedisca,
        fedisca.FedISCA(inversion=inversion.Inversion(steps=25, batch_size=48), epochs=3, lr=0.02),
    ),
    "e_fedisca": (
        e_fedisca.e_fedisca,
        e_fedisca.EFedISCA(
            inversion=inversion.Inversion(steps=25, batch_size=48), epochs=8, lr=0.02, levels=8, refresh=4
        ),
    ),
}


def copied(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def run(
    name: str, trained: list[models.Classifier], student: Build, problem: Problem, seed: int = 0
) -> Result:
    function, settings = TINY[name]
    return function(trained, student(), problem, settings, seed)


@pytest.fixture(scope="module")
def results(trained: list[models.Classifier], problem: Problem) -> dict[str, Result]:
    before = [copied(model) for model in trained]

    def student() -> models.Classifier:
        return models.build("cnn3_bn", num_classes=3, in_channels=1, image_size=8, seed=9)

    out = {name: run(name, trained, student, problem) for name in TINY}
    for model, old in zip(trained, before):  # teachers are bit-unchanged, BatchNorm statistics included
        assert all(torch.equal(value, old[key]) for key, value in model.state_dict().items())
    return out


@pytest.mark.parametrize("name", TINY)
def test_student_clearly_beats_chance(name: str, results: dict[str, Result], test_data: ImageData) -> None:
    scores = results[name].scores(test_data)
    assert scores["accuracy"] > 60  # percent; chance is 33
    assert not scores["constant"]


@pytest.mark.parametrize("name", TINY)
def test_each_client_sends_its_model_once(name: str, results: dict[str, Result]) -> None:
    result = results[name]
    assert result.ledger.uplinks() == {0: 1, 1: 1}
    frame = result.ledger.frame()
    assert set(frame.direction) == {"up"}
    assert result.budget["clients"] == 2
    assert result.budget["num_classes"] == 3
    assert result.budget["epochs"] == len(result.history)
    assert not result.model.training


def test_reconstruction_is_marked(results: dict[str, Result]) -> None:
    assert "reconstructed" in results["e_fedisca"].note


@pytest.mark.parametrize("name", ["dafl", "dense", "fedisca", "e_fedisca"])
def test_same_seed_same_bits(
    name: str, trained: list[models.Classifier], student: Build, problem: Problem
) -> None:
    function, _ = TINY[name]
    short = inversion.Inversion(steps=3, batch_size=12)
    settings = {
        "dafl": dafl.DAFL(epochs=1, iterations=2, batch_size=8, width=4),
        "dense": dense.DENSE(epochs=2, generator_steps=2, batch_size=8, nz=4, width=4),
        "fedisca": fedisca.FedISCA(inversion=short, epochs=2),
        "e_fedisca": e_fedisca.EFedISCA(inversion=short, epochs=2, levels=2, refresh=1),
    }[name]
    torch.manual_seed(1)
    first = copied(function(trained, student(), problem, settings, 0).model)
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    again = copied(function(trained, student(), problem, settings, 0).model)
    other = copied(function(trained, student(), problem, settings, 1).model)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


@pytest.mark.parametrize("name", TINY)
def test_no_client_is_refused(name: str, student: Build, problem: Problem) -> None:
    function, settings = TINY[name]
    with pytest.raises(InputError, match="0 clients"):
        function([], student(), problem, settings, 0)


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        (dafl.DAFL, {"iterations": 0}),
        (dafl.DAFL, {"student_optimizer": "lbfgs"}),
        (dafl.DAFL, {"lr_generator": -1.0}),
        (dense.DENSE, {"generator_steps": 0}),
        (dense.DENSE, {"batch_norm_reduce": "max"}),
        (dense.DENSE, {"temperature": 0.0}),
        (fedisca.FedISCA, {"epochs": 0}),
        (fedisca.FedISCA, {"lr": 0.0}),
        (e_fedisca.EFedISCA, {"levels": 0}),
        (inversion.Inversion, {"steps": 0}),
        (inversion.Inversion, {"batch_size": 1}),
    ],
)
def test_bad_settings_are_named(settings: Callable[..., Any], change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(change))):
        settings(**change)


def test_paper_budgets_are_the_defaults() -> None:
    assert (dafl.DAFL().epochs, dafl.DAFL().iterations, dafl.DAFL().batch_size) == (200, 120, 512)
    assert (dense.DENSE().epochs, dense.DENSE().generator_steps, dense.DENSE().temperature) == (200, 30, 20)
    settings = fedisca.FedISCA()
    assert (settings.epochs, settings.inversion.steps, settings.inversion.batch_size) == (100, 500, 256)
    assert e_fedisca.EFedISCA().refresh == 10


@pytest.mark.parametrize("name", TINY)
def test_clients_may_have_different_architectures(name: str, student: Build, problem: Problem) -> None:
    """The teacher's logits are all that has to fit; the student learns from it all the same."""
    function, settings = TINY[name]
    names = ("cnn3_bn", "wrn16_2", "vgg8_bn")
    mixed = [models.build(n, num_classes=3, in_channels=1, image_size=8, seed=1) for n in names]
    changes: dict[str, Any] = {"epochs": 1}
    if name == "dafl":
        changes["iterations"] = 2
    elif name == "dense":
        changes["generator_steps"] = 2
    else:
        changes["inversion"] = inversion.Inversion(steps=3, batch_size=12)
    model = student()
    before = model.head.weight.clone()
    result = function(mixed, model, problem, dataclasses.replace(settings, **changes), 0)
    assert not torch.equal(result.model.head.weight, before)
    assert torch.isfinite(result.model.head.weight).all()
    sizes = result.ledger.frame()["bytes"].tolist()
    assert len(set(sizes)) == 3  # each client sends a model of its own size


# --- DAFL ------------------------------------------------------------------------------------------------


def test_entropy_loss_is_least_for_classes_equally_frequent() -> None:
    sure = 50 * torch.eye(4, dtype=torch.float64)
    assert float(dafl.entropy_loss(sure)) == pytest.approx(-math.log(4))
    assert float(dafl.entropy_loss(sure, "10")) == pytest.approx(-math.log10(4))
    assert float(dafl.entropy_loss(sure[[0, 0, 1, 2]])) > -math.log(4)
    assert float(dafl.entropy_loss(1e4 * torch.eye(4)[:1])) == 0  # one class only; 0 log 0 = 0


def test_one_hot_loss_is_positive_and_activation_loss_averages_over_clients() -> None:
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    assert float(dafl.one_hot_loss(logits)) > 0
    features = [torch.ones(2, 3), -3 * torch.ones(2, 5)]
    assert float(dafl.activation_loss(features)) == -2


def test_dafls_student_has_the_step_size_of_its_optimizer(student: Build) -> None:
    rates = {
        name: dafl.DAFL(student_optimizer=name).optimizer(student()).param_groups[0]["lr"]
        for name in ("adam", "sgd")
    }
    assert rates == {"adam": 2e-3, "sgd": 0.1}
    assert dafl.DAFL(lr_student=0.5).optimizer(student()).param_groups[0]["lr"] == 0.5


def test_students_loss_never_reaches_the_generator(
    trained: list[models.Classifier], student: Build, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all weights of L_G zero the generator would still move if the student's gradient reached it."""
    made: list[nn.Module] = []
    make = dafl.new_generator
    monkeypatch.setattr(dafl, "new_generator", lambda *args: made.append(make(*args)) or made[-1])
    settings = dafl.DAFL(
        epochs=1, iterations=2, batch_size=8, width=4, one_hot=0.0, activation=0.0, entropy=0.0
    )
    model = student()
    before = model.head.weight.clone()
    dafl.dafl(trained, model, problem, settings, 0)
    assert not torch.equal(model.head.weight, before)
    fresh = make(settings.nz, problem, "tanh", settings.width, torch.device("cpu"), 0, "dafl generator")
    assert all(torch.equal(a, b) for a, b in zip(made[0].parameters(), fresh.parameters()))


# --- DENSE -----------------------------------------------------------------------------------------------


def test_adversarial_loss_is_zero_for_equal_nets_and_counts_disagreement_only() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    assert float(dense.adversarial_loss(logits, logits)) == 0
    agreeing = torch.tensor([[5.0, 0.0], [0.0, 3.0]])
    assert float(dense.adversarial_loss(agreeing, logits)) == 0
    other = torch.tensor([[0.0, 2.0], [0.0, 1.0]])
    p, q = logits[0].softmax(0), other[0].softmax(0)
    assert float(dense.adversarial_loss(other, logits)) == pytest.approx(
        -float((p * (p / q).log()).sum()) / 2
    )


def test_pool_grows_by_one_batch_an_epoch(results: dict[str, Result]) -> None:
    settings = TINY["dense"][1]
    pools = [row["pool"] for row in results["dense"].history]
    assert pools == [settings.batch_size * (epoch + 1) for epoch in range(settings.epochs)]


def test_synthesis_leaves_the_student_alone(
    trained: list[models.Classifier], student: Build, problem: Problem
) -> None:
    model, settings = student(), dense.DENSE(epochs=1, generator_steps=3, batch_size=8, nz=4, width=4)
    before = copied(model)
    images, loss = dense.synthesise(Ensemble(trained), model, problem, settings, 0, 0)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(value.grad is None for value in model.parameters())
    assert not images.requires_grad
    assert (
        -1 - 1e-5 <= float(images.min()) <= float(images.max()) <= 1 + 1e-5
    )  # 0 to 1, normalised by 0.5, 0.5
    assert math.isfinite(loss)


# --- FedISCA ---------------------------------------------------------------------------------------------


def test_two_teachers_that_agree_make_alpha_irrelevant() -> None:
    student, teacher = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = [float(fedisca.two_teachers_loss(student, teacher, teacher, a, 20.0)) for a in (0.0, 0.3, 0.9)]
    assert values == pytest.approx([values[0]] * 3, rel=1e-12)


def test_alpha_goes_from_zero_to_below_one_and_only_statistics_of_the_adapted_ensemble_move(
    trained: list[models.Classifier], student: Build, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    alphas: list[float] = []
    loss = fedisca.two_teachers_loss

    def noted(*args: Any) -> torch.Tensor:
        alphas.append(args[3])
        return loss(*args)

    ensembles: list[tuple[Ensemble, Ensemble]] = []
    adapt = Ensemble.adapted

    def kept(self: Ensemble) -> Any:
        ensembles.append((self, adapt(self)))
        return ensembles[-1][1]

    monkeypatch.setattr(fedisca, "two_teachers_loss", noted)
    monkeypatch.setattr(Ensemble, "adapted", kept)
    settings = fedisca.FedISCA(inversion=inversion.Inversion(steps=4, batch_size=6), epochs=2)
    fedisca.fedisca(trained, student(), problem, settings, 0)
    assert alphas == [0, 0.25, 0.5, 0.75] * 2
    ensemble, adapted = ensembles[0]
    original = Ensemble(trained).state_dict()
    assert all(torch.equal(value, original[key]) for key, value in ensemble.state_dict().items())
    moved = {key for key, value in adapted.state_dict().items() if not torch.equal(value, original[key])}
    assert moved
    assert {key.rsplit(".", 1)[1] for key in moved} == {"running_mean", "running_var", "num_batches_tracked"}


def test_inversion_lowers_its_loss_from_noise_on(trained: list[models.Classifier], problem: Problem) -> None:
    teacher, targets = Ensemble(trained), torch.arange(12) // 4

    def steps(**change: float) -> list[torch.Tensor]:
        settings = inversion.Inversion(steps=40, batch_size=12, **change)  # type: ignore[arg-type]
        random = torch.Generator().manual_seed(0)
        return list(inversion.invert(teacher, problem, settings, random, torch.device("cpu")))

    def entropy(x: torch.Tensor) -> float:
        return float(nn.functional.cross_entropy(teacher(x), targets))

    images = steps(batch_norm=0.0)
    assert len(images) == 40
    assert entropy(images[-1]) < 0.1 * entropy(images[0])  # what the teacher takes for the targets
    distances = []
    with BatchNormDistance(list(teacher.models)) as distance:
        for x in steps()[:: len(images) - 1]:
            teacher(x)
            distances.append(float(distance.value("sum").detach()))  # type: ignore[union-attr]
    assert distances[1] < 0.9 * distances[0]


def test_structured_noise_is_standardised_and_of_six_kinds() -> None:
    noise = e_fedisca.structured_noise((12, 3, 28, 28), torch.Generator().manual_seed(0))
    assert torch.allclose(noise.mean((1, 2, 3)), torch.zeros(12), atol=1e-5)
    assert torch.allclose(noise.std((1, 2, 3), correction=0), torch.ones(12), atol=1e-4)
    rough = (noise[..., 1:] - noise[..., :-1]).square().mean((1, 2, 3)) / 2  # 1 for white noise
    assert rough[0] == pytest.approx(1, abs=0.1)
    assert rough[1] < rough[2] < rough[3] < 0.3  # coarse: 4, 7, 14 pixels
    assert rough[4] < 0.6  # 1/f
    spread = noise[5].mean((1, 2)).std()
    assert spread > 3 * noise[0].mean((1, 2)).std()  # a constant for each channel
