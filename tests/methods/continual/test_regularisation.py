"""EWC, MAS, SI, RWalk, MUC-MAS: importance and pull."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedlib.data.tensors import Normalizer
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual import importance
from fedlib.methods.continual.ewc import EWC
from fedlib.methods.continual.mas import MAS
from fedlib.methods.continual.muc_mas import MUCMAS, discrepancy, phase_scrambled
from fedlib.methods.continual.quadratic import Quadratic, combine
from fedlib.methods.continual.rwalk import RWalk
from fedlib.methods.continual.si import SI
from fedlib.methods.continual.strategy import Net
from fedlib.models import Classifier


def vectors(n: int = 12, seed: int = 0) -> ImageData:
    """Samples whose features are their four pixels."""
    images = np.random.default_rng(seed).integers(0, 256, (n, 2, 2, 1)).astype(np.uint8)
    return ImageData(images, np.arange(n, dtype=np.int64) % 2, Normalizer((0.5,), (0.3,)))


def linear_net() -> Net:
    return Net(Classifier(nn.Flatten(), 4, 2)).double()


def begun(strategy, make, data, tasks=((0, 1), (2, 3))):
    """A strategy on a linear network with a head of two rows."""
    net = linear_net()
    net.head.expand((0, 1), torch.randn(2, 4, generator=torch.Generator().manual_seed(0)))
    strategy.start(make.context(net, data, tasks))
    strategy.begin_task(data)
    net.eval()
    return strategy


class Doubles:
    """Data in float64."""

    def __init__(self, data: ImageData) -> None:
        self.data, self.labels = data, data.labels

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, rows):
        x, y = self.data.batch(rows)
        return x.double(), y


def everything(data):
    return Doubles(data).batch(torch.arange(len(data)))


def test_fisher_information_of_logistic_regression(make) -> None:
    data = vectors()
    strategy = begun(EWC(include_head=True), make, data)
    x, _ = everything(data)
    z = x.flatten(1)
    p = strategy.net(x).softmax(1)[:, 1]
    # F = E[p (1 - p) x^2] for either row, because d log p_1 / d w_1 = (1 - p) x and d log p_0 / d w_1 = -p x
    wanted = ((p * (1 - p))[:, None] * z.square()).mean(0)
    found = importance.fisher(
        strategy.net, strategy.parameters(), Doubles(data), slice(0, 2), strategy.targets, "expected", 4
    )
    for row in found["head.weight"]:
        torch.testing.assert_close(row, wanted)


@pytest.mark.parametrize("kind", importance.FISHERS)
def test_every_fisher_estimate_is_a_mean_of_squares(kind, make) -> None:
    data = vectors()
    strategy = begun(EWC(include_head=True), make, data)
    x, y = everything(data)
    found = importance.fisher(
        strategy.net, strategy.parameters(), Doubles(data), slice(0, 2), strategy.targets, kind, len(data)
    )["head.weight"]
    assert (found >= 0).all()
    weight = strategy.net.head.weight
    logits = strategy.net(x)
    if kind == "expected":
        return
    label = y if kind == "empirical" else logits.argmax(1)
    if kind == "batch":
        (g,) = torch.autograd.grad(functional.cross_entropy(logits, label), weight)
        wanted = g.square()
    else:
        losses = functional.cross_entropy(logits, label, reduction="none")
        wanted = torch.stack(
            [torch.autograd.grad(loss, weight, retain_graph=True)[0].square() for loss in losses]
        ).mean(0)
    torch.testing.assert_close(found, wanted.detach())


def test_the_penalty_is_zero_at_the_old_parameters_and_grows_from_there(make, train) -> None:
    strategy = make.started(EWC(strength=2.0, samples=4), train)
    assert float(strategy.penalty()) == 0
    make.next_task(strategy, train)
    penalty = strategy.penalty()
    penalty.backward()
    assert float(penalty.detach()) == 0
    assert all(p.grad is None or not p.grad.any() for p in strategy.net.parameters())
    # one step on the second task
    strategy.net.zero_grad()
    strategy.loss(*make.of(train, make.tasks[1]).batch(torch.arange(8))).backward()
    torch.optim.SGD(strategy.net.parameters(), 0.1).step()
    by_hand = sum(
        (strategy.omega[name] * (p - strategy.anchor[name]) ** 2).sum()
        for name, p in strategy.parameters().items()
    )
    assert float(by_hand.detach()) > 0
    torch.testing.assert_close(strategy.penalty(), by_hand)
    whole = strategy.loss(*train.batch(torch.arange(8)))
    logits = strategy.net(train.batch(torch.arange(8))[0])
    plain = strategy.cross_entropy(logits, torch.from_numpy(train.labels[:8]))
    torch.testing.assert_close(whole - plain, 0.5 * 2.0 * by_hand, rtol=1e-3, atol=1e-6)


def test_the_optimum_of_two_parabolas(make) -> None:
    # h2/2 (theta - a2)^2 + lambda/2 F (theta - theta1)^2 is least at (h2 a2 + lambda F theta1) / (h2 + lambda F)
    h2, a2, lam, f, theta1 = 2.0, 3.0, 4.0, 0.7, -1.0
    strategy = begun(Quadratic(strength=lam, include_head=True), make, vectors())
    bias = strategy.net.head.bias
    strategy.anchor = {"head.bias": torch.full((2,), theta1, dtype=torch.float64)}
    strategy.omega = {"head.bias": torch.full((2,), f, dtype=torch.float64)}
    optimizer = torch.optim.SGD([bias], 0.1)
    for _ in range(200):
        optimizer.zero_grad()
        loss = h2 / 2 * (bias - a2).square().sum() + lam * strategy.factor * strategy.penalty()
        loss.backward()
        (gradient,) = torch.autograd.grad(lam * strategy.factor * strategy.penalty(), [bias])
        torch.testing.assert_close(strategy.penalty_gradient("head.bias", bias), gradient)
        optimizer.step()
    wanted = (h2 * a2 + lam * f * theta1) / (h2 + lam * f)
    torch.testing.assert_close(bias.detach(), torch.full_like(bias, wanted))


@pytest.mark.parametrize(("merge", "wanted"), [("average", 0.25 * 2 + 0.75 * 6), ("online", 0.5 * 2 + 6)])
def test_fisher_estimates_of_tasks_are_merged(merge, wanted, make, train, monkeypatch) -> None:
    value = 2.0

    def fisher(net, parameters, *rest):
        return {name: torch.full_like(p, value) for name, p in parameters.items()}

    monkeypatch.setattr(importance, "fisher", fisher)
    strategy = make.started(EWC(merge=merge, a=0.25, gamma=0.5), train)
    make.next_task(strategy, train)
    assert all((x == 2).all() for x in strategy.omega.values())
    value = 6.0
    strategy.end_task(train)
    assert all((x == wanted).all() for x in strategy.omega.values())


def test_rows_that_the_head_did_not_have_yet_count_as_zero() -> None:
    old, new = torch.ones(2, 3), torch.full((4, 3), 2.0)
    assert combine(old, new, 0.5, 1.0)[:, 0].tolist() == [2.5, 2.5, 2, 2]


def test_importance_of_a_linear_map_by_mas(make) -> None:
    data = vectors()
    strategy = begun(MAS(include_head=True), make, data)
    x, _ = everything(data)
    z = x.flatten(1)
    weight = strategy.net.head.weight
    # Omega = E |2 W x x^T|
    wanted = torch.stack([(2 * torch.outer(weight @ v, v)).abs() for v in z]).mean(0)
    strategy.context.net.float()
    found = strategy.sensitivity(data)["head.weight"]
    torch.testing.assert_close(found.double(), wanted.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["squared", "batch"])
def test_labels_play_no_part_in_mas(norm, make, train) -> None:
    strategy = make.started(MAS(norm=norm, samples=8), train)
    shuffled = ImageData(train.images, np.roll(train.labels, 1), train.normalizer)
    first, second = strategy.sensitivity(train), strategy.sensitivity(shuffled)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_path_integral_accounts_for_the_fall_of_a_quadratic_loss(make) -> None:
    strategy = begun(SI(include_head=True), make, vectors())
    weight = strategy.net.head.weight
    root = torch.randn(8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    h, lr, steps, second_order = root @ root.T / 8, 0.05, 20, 0.0

    def loss():
        return 0.5 * weight.flatten() @ h @ weight.flatten()

    optimizer = torch.optim.SGD([weight], lr)
    before = float(loss().detach())
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        strategy.after_backward()
        g = weight.grad.flatten()
        second_order += float(0.5 * lr**2 * g @ h @ g)
        old = {"head.weight": weight.detach().clone()}
        optimizer.step()
        strategy.after_step(old)
    # sum_i omega_i - (L_0 - L_T) = 1/2 sum_steps lr^2 g^T H g
    omega = float(strategy.path["head.weight"].sum())
    assert omega - (before - float(loss().detach())) == pytest.approx(second_order, rel=1e-9)
    assert second_order > 0


def test_path_integral_leaves_the_penalty_out(make, train) -> None:
    strategy = make.started(SI(strength=3.0), train)
    make.next_task(strategy, train)
    strategy.omega = {name: torch.ones_like(p) for name, p in strategy.parameters().items()}
    with torch.no_grad():
        for p in strategy.net.parameters():
            p += 0.1
    x, y = make.of(train, make.tasks[1]).batch(torch.arange(8))
    names = list(strategy.parameters())
    plain = torch.autograd.grad(
        strategy.cross_entropy(strategy.net(x), y), [strategy.parameters()[n] for n in names]
    )
    strategy.loss(x, y).backward()
    strategy.after_backward()
    for name, g in zip(names, plain):
        torch.testing.assert_close(strategy.gradient[name], g, rtol=1e-4, atol=1e-5)


def test_si_divides_the_path_by_the_distance(make) -> None:
    strategy = begun(SI(include_head=True, xi=0.5), make, vectors())
    with torch.no_grad():
        strategy.net.head.weight += 2.0
    strategy.path = {name: torch.full_like(p, 9.0) for name, p in strategy.parameters().items()}
    strategy.end_task(vectors())
    torch.testing.assert_close(strategy.omega["head.weight"], torch.full((2, 4), 9 / 4.5).double())


def test_rwalk_without_fisher_is_si_that_cuts_off_negative_paths(make, train, monkeypatch) -> None:
    monkeypatch.setattr(
        importance,
        "fisher",
        lambda net, parameters, *rest: {name: torch.zeros_like(p) for name, p in parameters.items()},
    )
    strategy = make.started(RWalk(xi=0.5), train)
    path = {name: torch.randn_like(p) for name, p in strategy.parameters().items()}
    strategy.path = path
    make.next_task(strategy, train)
    for name, value in path.items():
        torch.testing.assert_close(strategy.omega[name], (value / 0.5).relu())


@pytest.mark.parametrize("score", ["end", "path"])
def test_rwalk_scores_are_not_negative_and_can_be_normalised(score, go) -> None:
    strategy = RWalk(score=score, normalise=True, samples=8, interval=3)
    go(strategy)
    assert all((x >= 0).all() for x in strategy.scores_.values())
    assert all((x >= 0).all() for x in strategy.fishers.values())
    assert max(float(x.max()) for x in strategy.omega.values()) <= 2
    assert max(float(x.max()) for x in strategy.omega.values()) >= 1


def test_muc_mas_without_side_heads_is_mas(go, same_bits) -> None:
    # alpha sum Omega d^2 = (2 alpha / 2) sum Omega d^2
    muc, mas = MUCMAS(strength=2.0, side_heads=0, samples=8), MAS(strength=4.0, samples=8)
    assert same_bits(go(muc).net, go(mas).net)
    assert all(torch.equal(muc.omega[name], mas.omega[name]) for name in mas.omega)
    assert any(x.any() for x in mas.omega.values())


def test_equal_side_heads_do_not_disagree_and_trained_ones_disagree_more_on_other_images(make, train) -> None:
    logits = torch.randn(1, 6, 3, generator=torch.Generator().manual_seed(0))
    assert float(discrepancy(logits.expand(3, -1, -1))) == 0
    assert float(discrepancy(logits)) == 0
    strategy = make.started(MUCMAS(side_epochs=15), train)
    data = make.of(train, make.tasks[0])
    weight, bias = strategy.train_side_heads(data)
    other = phase_scrambled(data, torch.Generator().manual_seed(5))
    own, far = (
        discrepancy(torch.einsum("bd,jcd->jbc", strategy.net.features(x), weight) + bias[:, None])
        for x in (d.batch(torch.arange(len(d)))[0] for d in (data, other))
    )
    assert far > own


def test_muc_mas_adds_up_both_importances_over_the_tasks(make, train, monkeypatch) -> None:
    strategy = make.started(MUCMAS(side_epochs=1), train)
    ones = {name: torch.ones_like(p) for name, p in strategy.parameters().items()}
    monkeypatch.setattr(MUCMAS, "sensitivity", lambda self, data: ones)
    monkeypatch.setattr(MUCMAS, "side_sensitivity", lambda self, *rest: {k: 2 * v for k, v in ones.items()})
    make.next_task(strategy, train)
    strategy.end_task(make.of(train, make.tasks[1]))
    for value in strategy.omega.values():
        torch.testing.assert_close(value, torch.full_like(value, 2 + 1.4 * 4))
    assert strategy.scores(train.batch(torch.arange(3))[0]).shape == (3, 5)


def test_scrambled_phases_keep_brightness_and_power() -> None:
    images = np.random.default_rng(0).integers(80, 176, (3, 16, 16, 2)).astype(np.uint8)
    data = ImageData(images, np.zeros(3, dtype=np.int64), Normalizer((0.5, 0.5), (0.3, 0.3)))
    out = phase_scrambled(data, torch.Generator().manual_seed(0)).images
    assert np.abs(out.mean((1, 2)) - images.mean((1, 2))).max() < 0.5
    power = [np.abs(np.fft.fft2(x.astype(float), axes=(1, 2))) for x in (images, out)]
    assert np.abs(power[0] - power[1]).max() / power[0][:, 1:].mean() < 0.2  # rounding to whole values
    assert np.abs(out.astype(int) - images).mean() > 10
