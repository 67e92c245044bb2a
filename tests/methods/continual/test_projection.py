"""GPM and OWM: steps that leave the outputs for earlier inputs alone."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

from fedlib import models
from fedlib.methods.continual import gpm
from fedlib.methods.continual.gpm import GPM, grown, leading
from fedlib.methods.continual.harness import Suite, run
from fedlib.methods.continual.importance import sample
from fedlib.methods.continual.inputs import matrices, matrix, recorded
from fedlib.methods.continual.owm import OWM, updated
from fedlib.methods.continual.registry import method
from fedlib.methods.continual.strategy import Net, Strategy, evaluation


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_both_decompositions_give_the_same_space() -> None:
    low = random(6, 3) @ random(3, 40, seed=1) + 1e-3 * random(6, 40, seed=2)
    wanted = 0.99 * float(low.square().sum())
    wide = leading(low, wanted)  # through R R^T
    u, s, _ = torch.linalg.svd(low, full_matrices=False)
    k = int((s.square().cumsum(0) >= wanted).double().argmax()) + 1
    torch.testing.assert_close(wide @ wide.T, u[:, :k] @ u[:, :k].T)
    narrow = leading(low[:, :5], 0.99 * float(low[:, :5].square().sum()))  # through R itself
    torch.testing.assert_close(narrow.T @ narrow, torch.eye(narrow.shape[1], dtype=torch.float64))


def test_the_basis_grows_explains_the_share_and_stays_orthonormal() -> None:
    basis = torch.zeros(10, 0, dtype=torch.float64)
    ranks = []
    for task in range(3):
        r = random(10, 4, seed=task) @ random(4, 60, seed=10 + task)
        basis = grown(basis, r, 0.97)
        ranks.append(basis.shape[1])
        torch.testing.assert_close(
            basis.T @ basis, torch.eye(ranks[-1], dtype=torch.float64), atol=1e-6, rtol=0
        )
        share = (basis.T @ r).square().sum() / r.square().sum()
        assert share >= 0.97 - 1e-9
    assert ranks == sorted(ranks)
    assert grown(basis, r, 0.97).shape == basis.shape  # nothing new, nothing added
    assert grown(basis, random(10, 60, seed=9), 1.0).shape[1] == 10


def test_threshold_zero_keeps_nothing_and_one_keeps_all() -> None:
    r = random(5, 30)
    empty = torch.zeros(5, 0, dtype=torch.float64)
    assert grown(empty, r, 0.0).shape[1] == 0
    assert grown(empty, r, 1.0).shape[1] == 5


class FixedBiases(Strategy):
    """Fine-tuning whose biases, norms and old rows stay as they are after the first task."""

    @property
    def frozen_rows(self) -> int:
        return self.old

    def after_backward(self) -> None:
        if self.context.t:
            for name, p in self.net.named_parameters():
                if p.ndim == 1 and name != "head.bias":
                    p.grad.zero_()


def test_gpm_of_threshold_zero_is_fine_tuning_with_fixed_biases(go, same_bits) -> None:
    found = go(GPM(threshold=0.0, increase=0.0, lr=None, samples=10))
    assert same_bits(found.net, go(FixedBiases()).net)


def test_gpm_steps_are_orthogonal_to_earlier_inputs_and_keep_their_outputs(make, train) -> None:
    strategy = make.started(GPM(samples=30, threshold=0.9), train)
    make.next_task(strategy, train)
    old = {name: module.weight.detach().clone() for name, module in strategy.maps.items()}
    optimizer = torch.optim.SGD(strategy.net.parameters(), 0.1)
    data = make.of(train, make.tasks[1])
    strategy.net.train()
    for k in range(5):
        optimizer.zero_grad()
        strategy.loss(*data.batch(torch.arange(8) + 8 * k)).backward()
        strategy.after_backward()
        for name, module in strategy.maps.items():
            g, b = module.weight.grad.flatten(1), strategy.projections[name]
            assert 0 < b.shape[1] < b.shape[0]
            assert (g @ b).norm() / g.norm() < 1e-5
        optimizer.step()
    for name, module in strategy.maps.items():
        basis = strategy.projections[name]
        moved = (module.weight - old[name]).flatten(1)
        assert moved.norm() > 1e-3
        x = basis @ torch.randn(basis.shape[1], 20, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(moved @ x, torch.zeros(len(moved), 20), atol=1e-5, rtol=0)


def test_gpm_of_a_full_basis_leaves_the_weights(make, train) -> None:
    strategy = make.started(GPM(threshold=1.0, samples=100), train)
    make.next_task(strategy, train)
    strategy.bases = {name: torch.eye(len(b), dtype=torch.float64) for name, b in strategy.bases.items()}
    strategy.loss(*make.of(train, make.tasks[1]).batch(torch.arange(8))).backward()
    strategy.after_backward()
    assert not any(module.weight.grad.any() for module in strategy.maps.values())


def test_gpm_trains_with_plain_gradient_descent(make) -> None:
    settings = GPM().adapt(make.training)
    assert (settings.momentum, settings.weight_decay, settings.lr) == (0, 0, 0.01)


def test_updates_one_by_one_are_the_closed_form() -> None:
    x, alpha = random(7, 5), 0.3
    eye = torch.eye(5, dtype=torch.float64)
    together, p = updated(eye, x, alpha), eye
    for v in x:
        # P <- P - (P x x^T P) / (alpha + x^T P x)
        p = p - torch.outer(p @ v, v @ p) / (alpha + v @ p @ v)
    torch.testing.assert_close(together, p, atol=1e-10, rtol=0)
    # Woodbury: P = (I + sum x x^T / alpha)^-1
    torch.testing.assert_close(p @ (eye + x.T @ x / alpha), eye, atol=1e-8, rtol=0)
    values = torch.linalg.eigvalsh(together)
    assert torch.equal(together, together.T)
    assert values.min() >= 0
    assert values.max() <= 1 + 1e-12
    assert torch.equal(updated(eye, x, float("inf")), eye)


def test_as_many_inputs_as_a_large_image_has_places_need_no_more_than_a_projector() -> None:
    x = random(50_176, 5)  # an inverse for all places would have 20 GB
    start = torch.eye(5, dtype=torch.float64)
    many = updated(start, x, 3.0)
    torch.testing.assert_close(many, torch.linalg.inv(start + x.T @ x / 3.0), atol=1e-12, rtol=0)
    halves = updated(updated(start, x[:25_000], 3.0), x[25_000:], 3.0)
    torch.testing.assert_close(many, halves, atol=1e-12, rtol=0)


def test_the_mean_of_patches_is_the_patch_of_the_mean() -> None:
    conv = nn.Conv2d(3, 4, 3, padding=1, stride=2)
    x = random(7, 3, 9, 9)
    torch.testing.assert_close(matrix(conv, x).mean(0), matrix(conv, x.mean(0, keepdim=True))[0])


@pytest.mark.parametrize("floats", [1, 2**26])
def test_inputs_are_drawn_alike_however_many_images_are_cut_at_once(floats, make, train, monkeypatch) -> None:
    monkeypatch.setattr(gpm, "COLUMNS", 50)
    monkeypatch.setattr(gpm, "FLOATS", floats)  # 1: one image at a time
    strategy = make.started(GPM(samples=20), train)
    data = make.of(train, make.tasks[0])
    found = strategy.inputs(data)
    chosen = sample(data, 20, strategy.context.generator("samples"))
    with recorded(strategy.maps) as latest, evaluation(strategy.net), torch.no_grad():
        strategy.net(chosen.batch(torch.arange(20))[0])
        whole = {name: matrix(module, latest[name]).flatten(0, 1) for name, module in strategy.maps.items()}
    for name, r in whole.items():
        if len(r) > 50:
            r = r[torch.randperm(len(r), generator=strategy.context.generator("columns", name))[:50]]
        torch.testing.assert_close(found[name], r.double().T, atol=1e-5, rtol=1e-5)
    assert {r.shape[1] for r in found.values()} == {20, 50}


def test_a_small_alpha_removes_earlier_inputs() -> None:
    x = random(3, 8)
    p = updated(torch.eye(8, dtype=torch.float64), x, 1e-9)
    assert (p @ x.T).abs().max() < 1e-7


@pytest.mark.parametrize("update", ["after_task", "online"])
def test_projectors_of_a_run_are_symmetric_contractions(update, go) -> None:
    strategy = OWM(update=update)
    go(strategy)
    assert set(strategy.projectors) == {"encoder.0", "encoder.5", "head"}
    for p in strategy.projectors.values():
        values = torch.linalg.eigvalsh(p)
        assert torch.equal(p, p.T)
        assert values.min() > -1e-9
        assert values.max() < 1 + 1e-9
        assert values.min() < 0.9  # something was learnt


def test_the_first_task_of_owm_is_fine_tuning(go, same_bits) -> None:
    tasks = ((0, 1, 2, 3, 4),)
    owm = OWM(momentum=None, clip=None)
    assert same_bits(go(owm, tasks=tasks).net, go(method("finetune"), tasks=tasks).net)


def test_owm_fixes_what_has_no_projector(make, train) -> None:
    strategy = make.started(OWM(layers=1), train)
    make.next_task(strategy, train)
    strategy.loss(*make.of(train, make.tasks[1]).batch(torch.arange(8))).backward()
    strategy.after_backward()
    moving = {name for name, p in strategy.net.named_parameters() if p.grad is not None and p.grad.any()}
    assert moving == {"head.weight", "head.bias"}


def test_owm_keeps_the_outputs_for_earlier_inputs(make, train) -> None:
    strategy = make.started(OWM(alpha=1e-6, layers=1), train)
    make.next_task(strategy, train)
    head = strategy.net.head
    z = torch.cat([torch.randn(3, 32, generator=torch.Generator().manual_seed(0)), torch.ones(3, 1)], dim=1)
    strategy.projectors["head"] = updated(torch.eye(33, dtype=torch.float64), z.double(), 1e-9)
    before = head(z[:, :-1]).detach()
    strategy.loss(*make.of(train, make.tasks[1]).batch(torch.arange(8))).backward()
    strategy.after_backward()
    torch.optim.SGD(head.parameters(), 1.0).step()
    torch.testing.assert_close(head(z[:, :-1]), before, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", [GPM, OWM])
def test_convolutions_in_groups_and_attention_are_fixed_after_the_first_task(kind, make, train, test) -> None:
    encoder = models.embedder("mobilenetv2_attention", dim=8, in_channels=1, image_size=8, seed=0)
    rest = {
        f"encoder.{name}": module
        for name, module in encoder.named_modules()
        if (isinstance(module, nn.Conv2d) and module.groups > 1) or isinstance(module, nn.MultiheadAttention)
    }
    assert len(rest) == 17 + 1
    strategy = kind()
    strategy.start(make.context(Net(copy.deepcopy(encoder)), train))
    assert not set(rest) & set(strategy.maps)
    training = dataclasses.replace(make.training, epochs=1, lr=0.01)
    suite = Suite(training=training, ce_scope="seen")
    one, both = (
        run(kind(), encoder, train, test, tasks, suite, 0).net for tasks in (make.tasks[:1], make.tasks)
    )
    moved = {
        n for n, p in one.named_parameters() if not torch.equal(p, dict(both.named_parameters())[n][: len(p)])
    }
    assert not any(name.startswith(f"{layer}.") for name in moved for layer in rest)
    assert "encoder.backbone.features.0.0.weight" in moved


def test_a_convolution_that_pads_on_its_own_is_no_matrix() -> None:
    net = models.embedder("efficientnet_lite0", dim=8, in_channels=3, image_size=224, seed=0)
    found = matrices({name: m for name, m in net.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)})
    assert "backbone.conv_stem" not in found
    assert "backbone.blocks.1.0.conv_pw" in found
    assert "neck" in found
