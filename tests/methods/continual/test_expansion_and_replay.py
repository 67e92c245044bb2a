"""EFT, iCaRL, EEIL, GR, BIR."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal, Normal, kl_divergence
from torch.nn import functional

from fedlib.data.tensors import Normalizer
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual.bir import BIR, FeedbackNet, log_normal
from fedlib.methods.continual.eeil import EEIL
from fedlib.methods.continual.eft import EFT, Adapter, Paths
from fedlib.methods.continual.gr import GR, kl_to_standard, replay_loss
from fedlib.methods.continual.icarl import ICaRL, means_of_exemplars
from fedlib.methods.continual.registry import method
from fedlib.methods.continual.strategy import Net
from fedlib.methods.mpt.baselines.icarl import herding


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# EFT


@pytest.mark.parametrize("norm", [True, False])
def test_shared_convolutions_and_earlier_paths_keep_their_bits(norm, go, make) -> None:
    tasks = ((2, 3), (0, 1), (4,))
    states = []

    class Watched(EFT):
        def end_task(self, data) -> None:
            super().end_task(data)
            states.append({name: value.clone() for name, value in self.net.state_dict().items()})

    found = go(Watched(group=4, point=4, lr=None), tasks=tasks, encoder=make.encoder(norm))
    for t, state in enumerate(states):
        for name, value in state.items():
            fixed = ".base." in name or any(f".tasks.{m}." in name for m in range(t + 1))
            if fixed and t < 2:
                assert torch.equal(value, states[-1][name]), name
    # task-aware accuracy of a task never changes after it
    taw = found.accuracy.values["taw"]
    assert all(np.array_equal(taw[i:, i], np.full(3 - i, taw[i, i])) for i in range(3))
    new = [n for n in states[1] if ".tasks.1." in n]
    assert any(not torch.equal(states[1][n], states[1][n.replace(".tasks.1.", ".tasks.0.")]) for n in new)


def test_the_first_task_has_one_path_to_choose(make, train) -> None:
    strategy = make.started(EFT(group=4, point=4), train)
    x = train.batch(torch.arange(6))[0]
    assert torch.equal(strategy.scores(x).argmax(1), strategy.net(x).argmax(1))


def test_parameters_of_a_path() -> None:
    for channels, group, point in ((32, 8, 16), (64, 8, 16), (12, 8, 16)):
        gp, pt = math.gcd(channels, group), math.gcd(channels, point)
        adapter = Adapter(channels, group, point, norm=True)
        # C (gp 9 + 1) + C (pt + 1) + 2 C
        wanted = channels * (9 * gp + 1) + channels * (pt + 1) + 2 * channels
        assert sum(p.numel() for p in adapter.parameters()) == wanted


def test_the_choice_of_the_path_is_the_smallest_entropy(make, train) -> None:
    strategy = make.started(EFT(group=4, point=4), train, tasks=((2, 3), (0, 1)))
    make.next_task(strategy, train, tasks=((2, 3), (0, 1)))
    with torch.no_grad():
        strategy.net.head.weight[2:] *= 1e-3  # the second path is never sure
    x = train.batch(torch.arange(20))[0]
    said = strategy.predict(x)
    assert set(said.tolist()) <= {2, 3}
    own = torch.ones(20, dtype=torch.int64)
    assert set(strategy.predict(x, "taw", own).tolist()) <= {0, 1}


def test_paths_apart_pay_nothing(make, train) -> None:
    strategy = make.started(EFT(group=4, point=4, weight=0.5), train)
    make.next_task(strategy, train)
    x, y = make.of(train, make.tasks[1]).batch(torch.arange(8))
    plain = strategy.cross_entropy(strategy.net(x), y)
    # the new path is a copy of the first one: max(0, 1 - 0) = 1
    torch.testing.assert_close(strategy.loss(x, y) - plain, torch.tensor(0.5))
    with torch.no_grad():
        for path in strategy.paths:
            if isinstance(path.tasks[-1], Adapter):
                path.tasks[-1].group_wise.weight *= 1e3
    plain = strategy.cross_entropy(strategy.net(x), y)
    torch.testing.assert_close(strategy.loss(x, y), plain)
    assert all(isinstance(path, Paths) and path.active == 1 for path in strategy.paths)


# iCaRL and EEIL


def test_a_smaller_memory_is_the_beginning_of_a_larger_one() -> None:
    z = torch.randn(30, 5, generator=gen(), dtype=torch.float64)
    whole = herding(z, 30).tolist()
    assert all(herding(z, m).tolist() == whole[:m] for m in (1, 4, 17))
    assert sorted(whole) == list(range(30))


def test_all_samples_as_exemplars_give_the_mean_of_the_class() -> None:
    z = torch.randn(12, 4, generator=gen(), dtype=torch.float64)
    labels = torch.arange(12) % 2
    means = means_of_exemplars(z, labels, (1, 0))
    for row, c in zip(means, (1, 0)):
        unit = functional.normalize(z[labels == c], dim=1).mean(0)
        torch.testing.assert_close(row, unit / unit.norm())


def test_the_nearest_mean_does_not_see_the_length_of_features() -> None:
    z, labels = torch.randn(12, 4, generator=gen(), dtype=torch.float64), torch.arange(12) % 3
    scale = torch.rand(12, 1, generator=gen(1), dtype=torch.float64) + 0.1
    torch.testing.assert_close(
        means_of_exemplars(z, labels, (0, 1, 2)), means_of_exemplars(scale * z, labels, (0, 1, 2))
    )


@pytest.mark.parametrize("kind", [ICaRL, EEIL])
def test_the_second_task_trains_on_exemplars_of_the_first(kind, go, monkeypatch) -> None:
    seen: list[set[int]] = []
    plain = kind.loss

    def watched(self, x, y):
        seen.append(set(y.tolist()))
        return plain(self, x, y)

    monkeypatch.setattr(kind, "loss", watched)
    strategy = kind(exemplars=13)
    go(strategy)
    late = set().union(*seen[len(seen) // 2 :])
    assert late == {0, 1, 2, 3, 4}
    assert {c: len(data) for c, data in strategy.memory.classes.items()} == dict.fromkeys(range(5), 2)
    assert all((data.labels == c).all() for c, data in strategy.memory.classes.items())


def test_icarl_distils_each_old_class(make, train) -> None:
    strategy = make.started(ICaRL(strength=2.0), train)
    make.next_task(strategy, train)
    with torch.no_grad():
        strategy.net.head.weight += 0.1
    x, y = train.batch(torch.arange(8))
    logits, old = strategy.net(x), strategy.teacher(x).sigmoid()
    by_class = [
        functional.binary_cross_entropy(logits[:, k].sigmoid(), old[:, k]) for k in range(old.shape[1])
    ]
    wanted = functional.cross_entropy(logits, strategy.targets(y)) + 2 * torch.stack(by_class).sum()
    torch.testing.assert_close(strategy.loss(x, y), wanted)


def test_the_second_stage_has_as_many_new_samples_as_old_ones(make, train) -> None:
    strategy = make.started(EEIL(exemplars=15), train)
    make.next_task(strategy, train)
    balanced = strategy.balanced(make.of(train, make.tasks[1]))
    counts = np.bincount(balanced.labels, minlength=5)
    assert counts[[2, 3]].tolist() == [7, 7]
    assert counts[[0, 1, 4]].sum() == 14
    assert counts[[0, 1, 4]].max() - counts[[0, 1, 4]].min() <= 1


def test_gradient_noise_changes_the_result_and_its_absence_does_not(go, same_bits) -> None:
    with_noise, without, again = (
        go(EEIL(exemplars=10, tuning_epochs=1, noise=noise)) for noise in (True, False, False)
    )
    assert same_bits(without.net, again.net)
    assert not same_bits(without.net, with_noise.net)


# GR


def test_divergence_from_the_standard_normal() -> None:
    mean, log_variance = torch.randn(2, 4, 3, generator=gen(), dtype=torch.float64)
    found = kl_to_standard(mean, log_variance)
    wanted = kl_divergence(Normal(mean, (log_variance / 2).exp()), Normal(0.0, 1.0)).sum(1)
    torch.testing.assert_close(found, wanted)
    assert (found >= 0).all()
    assert not kl_to_standard(torch.zeros(2, 3), torch.zeros(2, 3)).any()


TINY = {"iterations": 6, "hidden": 12, "latent": 3, "batch_size": 8, "lr": 1e-3}


@pytest.mark.parametrize("targets", ["hard", "soft"])
def test_replay_begins_with_the_second_task_and_names_old_classes_only(targets, go, monkeypatch) -> None:
    calls = []
    plain = GR.replayed

    def watched(self, count, generator):
        x, old = plain(self, count, generator)
        calls.append((self.context.t, x.shape, old.shape[1]))
        return x, old

    monkeypatch.setattr(GR, "replayed", watched)
    strategy = GR(replay_targets=targets, **TINY)
    before = []
    monkeypatch.setattr(GR, "begin_task", lambda self, data: before.append(self.state_dict()))
    go(strategy)
    assert calls == [(1, (8, 1, 8, 8), 2)] * 6  # two old rows: no other class can be a target
    assert before[0] == {}


@pytest.mark.parametrize(("channels", "wanted"), [(1, (400, 2000, 128, 1e-3)), (3, (2000, 5000, 256, 1e-4))])
def test_coloured_images_have_the_larger_defaults(channels: int, wanted: tuple, make, train) -> None:
    images = np.repeat(train.images, channels, axis=3)
    half = Normalizer((0.5,) * channels, (0.5,) * channels)
    data = ImageData(images, train.labels, half)
    strategy = method("gr", hidden=6)
    strategy.start(make.context(Net(make.encoder()), data))
    assert tuple(strategy.size) == (6, *wanted[1:])
    assert strategy.generator.encoder[0].in_features == 64 * channels
    small = method("gr", "small")
    small.start(make.context(Net(make.encoder()), data))
    assert tuple(small.size) == (256, 300, 32, 1e-3)


def test_the_previous_scholar_does_not_change(make, train) -> None:
    strategy = make.started(GR(**TINY), train)
    strategy.learn(make.of(train, make.tasks[0]), None)
    make.next_task(strategy, train)
    kept = {name: value.clone() for name, value in strategy.state_dict().items()}
    strategy.learn(make.of(train, make.tasks[1]), None)
    now = strategy.state_dict()
    assert all(torch.equal(kept[name], now[name]) for name in kept)


def test_pixels_come_back_as_images(make, train) -> None:
    strategy = make.started(GR(**TINY), train)
    x = train.batch(torch.arange(4))[0]
    v = strategy.pixels(x)
    assert v.min() >= 0
    assert v.max() <= 1
    torch.testing.assert_close(strategy.images(v), x, atol=1e-5, rtol=0)


def test_soft_targets_give_new_classes_probability_zero() -> None:
    old = torch.randn(5, 2, generator=gen(), dtype=torch.float64)
    logits = torch.randn(5, 4, generator=gen(1), dtype=torch.float64, requires_grad=True)
    loss = replay_loss(logits, old, "soft", 2.0)
    p = torch.cat([(old / 2).softmax(1), torch.zeros(5, 2, dtype=torch.float64)], dim=1)
    wanted = 4 * (torch.special.xlogy(p, p) - p * (logits / 2).log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(loss, wanted)
    (g,) = torch.autograd.grad(loss, logits)
    assert (g[:, 2:] > 0).all()  # new rows are pushed down
    hard = replay_loss(logits, old, "hard", 2.0)
    torch.testing.assert_close(hard, functional.cross_entropy(logits, old.argmax(1)))


# BIR


def feedback(closed: float = 0.7) -> FeedbackNet:
    torch.manual_seed(0)
    net = FeedbackNet(6, 20, 3, 4, closed, gen()).double()
    net.classifier.expand((0, 1, 2, 3), torch.randn(4, 20, generator=gen(1)))
    return net


def test_gates_have_their_density_and_never_change(make, train) -> None:
    strategy = make.started(BIR(dg_prop=0.7, **TINY | {"hidden": 20}), train)
    gates = strategy.feedback.gates.clone()
    assert torch.equal(gates.sum(2), torch.full((2, 5), 6.0))
    assert not torch.equal(gates[0, 0], gates[0, 1])
    strategy.learn(make.of(train, make.tasks[0]), None)
    make.next_task(strategy, train)
    strategy.learn(make.of(train, make.tasks[1]), None)
    assert torch.equal(strategy.feedback.gates, gates)


def test_a_list_of_classes_limits_what_is_generated() -> None:
    net = feedback()
    u, made_for = net.sample(50, [2], gen(), "class")
    assert u.shape == (50, 6)
    assert set(made_for.tolist()) == {2}
    assert set(net.sample(50, [0, 3], gen(), "class")[1].tolist()) == {0, 3}


def test_without_gates_and_with_the_standard_prior_it_is_a_variational_autoencoder() -> None:
    net = feedback(closed=0.0)
    u = torch.randn(7, 6, generator=gen(), dtype=torch.float64)
    p = functional.one_hot(torch.arange(7) % 4, 4).double()
    recon, variational, logits = net.losses(u, p, gen(5), "standard")
    h = net.encoder(u)
    mean, log_variance = net.moments(h).chunk(2, dim=1)
    z = mean + (log_variance / 2).exp() * torch.randn(mean.shape, generator=gen(5))
    out = net.out(net.decoder[1](net.decoder[0](z).relu()).relu())
    torch.testing.assert_close(recon, functional.mse_loss(out, u))
    torch.testing.assert_close(variational, kl_to_standard(mean, log_variance).mean() / 6)
    torch.testing.assert_close(logits, net(u))
    torch.testing.assert_close(recon, net.losses(u, p.roll(1, 1), gen(5), "standard")[0])


def test_the_conditional_term_estimates_the_divergence_from_the_prior_of_the_class() -> None:
    net = feedback()
    u = torch.randn(1, 6, generator=gen(), dtype=torch.float64)
    p = torch.tensor([[0.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    mean, log_variance = net.moments(net.encoder(u)).chunk(2, dim=1)
    q = Normal(mean[0], (log_variance[0] / 2).exp())
    prior = Normal(net.prior_mean[1], (net.prior_log_variance[1] / 2).exp())
    exact = float(kl_divergence(q, prior).sum().detach())
    draws = torch.stack(
        [net.losses(u.expand(500, -1), p.expand(500, -1), gen(s), "class")[1] for s in range(4)]
    )
    assert float(draws.mean().detach()) * 6 == pytest.approx(exact, rel=0.1, abs=0.05)


def test_soft_labels_weigh_the_modes_of_the_prior_and_the_gates() -> None:
    net = feedback()
    z = torch.randn(3, 3, generator=gen(), dtype=torch.float64)
    scale = torch.diag((net.prior_log_variance[2] / 2).exp())
    by_torch = MultivariateNormal(net.prior_mean[2], scale_tril=scale).log_prob(z)
    torch.testing.assert_close(log_normal(z, net.prior_mean[2], net.prior_log_variance[2]), by_torch)
    p = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    mixed = net.decode(z[:1], p)
    layer = net.decoder[0](z[:1]) * (0.25 * net.gates[0, 0] + 0.75 * net.gates[0, 1])
    layer = net.decoder[1](layer.relu()) * (0.25 * net.gates[1, 0] + 0.75 * net.gates[1, 1])
    torch.testing.assert_close(mixed, net.out(layer.relu()))


@pytest.mark.parametrize("closed", [0.0, 0.7])
def test_hard_replay_is_generative_replay_on_features(closed, make, train) -> None:
    strategy = make.started(BIR(replay_targets="hard", prior="standard", dg_prop=closed, **TINY), train)
    strategy.learn(make.of(train, make.tasks[0]), None)
    make.next_task(strategy, train)
    strategy.learn(make.of(train, make.tasks[1]), None)
    net, previous, noise = strategy.feedback, strategy.previous, gen(5)

    def decoded(source, z, classes):
        for layer, gates in zip(source.decoder, source.gates):
            # Without closed units this is the decoder of a plain variational autoencoder.
            z = (layer(z) * gates[classes] if closed else layer(z)).relu()
        return source.out(z)

    # The previous network generates and names; only the present one, which knows both tasks, is trained.
    u, made_for = previous.sample(8, [0, 1], noise, "standard")
    standard = gen(5)
    torch.randint(2, (8,), generator=standard)  # the classes
    torch.testing.assert_close(u, decoded(previous, torch.randn(8, 3, generator=standard), made_for))
    targets = torch.tensor([0 if first > second else 1 for first, second in previous(u).tolist()])
    assert set(targets.tolist()) == {0, 1}
    mean, log_variance = net.moments(net.encoder(u)).chunk(2, dim=1)
    z = mean + (log_variance / 2).exp() * torch.randn(mean.shape, generator=noise)
    wanted = [
        functional.mse_loss(decoded(net, z, targets), u),
        kl_to_standard(mean, log_variance).mean() / u.shape[1],
        functional.cross_entropy(net(u), targets),
    ]
    torch.testing.assert_close(strategy.replay(gen(5)), torch.stack(wanted))


def test_the_front_end_is_fixed(make, train) -> None:
    strategy = make.started(BIR(front_end="first_task", **TINY), train)
    start = {k: v.clone() for k, v in strategy.net.encoder.state_dict().items()}
    strategy.learn(make.of(train, make.tasks[0]), None)
    first = {k: v.clone() for k, v in strategy.net.encoder.state_dict().items()}
    make.next_task(strategy, train)
    strategy.learn(make.of(train, make.tasks[1]), None)
    second = strategy.net.encoder.state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert any(not torch.equal(first[k], start[k]) for k in first)


def test_generative_replay_keeps_what_fine_tuning_forgets(go) -> None:
    options = {"hidden": 64, "latent": 8, "iterations": 60, "batch_size": 16, "lr": 2e-3}
    kept = {
        "finetune": go(method("finetune")),
        "bir": go(BIR(front_end="first_task", **options)),
    }
    forgotten = {name: found.summary()["cil/forgetting_paper"] for name, found in kept.items()}
    assert forgotten["bir"] < forgotten["finetune"] / 2
