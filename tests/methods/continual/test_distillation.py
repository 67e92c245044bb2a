"""LwF and LwM: distillation."""

import pytest
import torch

from fedlib import models
from fedlib.methods.continual.harness import grow
from fedlib.methods.continual.lwf import LwF, soft_cross_entropy
from fedlib.methods.continual.lwm import LwM, attention, attention_loss
from fedlib.methods.continual.strategy import Net
from fedlib.methods.vcl.head import kd_loss


@pytest.mark.parametrize("form", ["ce", "kl"])
def test_a_student_that_equals_its_teacher_gets_no_gradient(form) -> None:
    student = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    student.requires_grad_()
    loss = {"ce": soft_cross_entropy, "kl": kd_loss}[form](student, student.detach(), 2.0)
    assert torch.autograd.grad(loss, student)[0].abs().max() < 1e-12


def test_the_two_forms_of_distillation_differ_by_a_factor_and_a_constant() -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(4, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    student.requires_grad_()
    first, second = (
        torch.autograd.grad(f(student, teacher, 2.0), student)[0] for f in (soft_cross_entropy, kd_loss)
    )
    torch.testing.assert_close(4 * first, second)


def test_lwf_pulls_on_the_old_rows_and_keeps_its_teacher(make, train) -> None:
    strategy = make.started(LwF(), train)
    make.next_task(strategy, train)
    before = {name: value.clone() for name, value in strategy.teacher.state_dict().items()}
    optimizer = torch.optim.SGD(strategy.net.parameters(), 0.1)
    strategy.net.train()
    data = make.of(train, make.tasks[1])
    for k in range(3):
        optimizer.zero_grad()
        strategy.loss(*data.batch(torch.arange(8) + 8 * k)).backward()
        optimizer.step()
    x = data.batch(torch.arange(8))[0]
    logits = strategy.net(x).detach().requires_grad_()
    with torch.no_grad():
        targets = strategy.teacher(x)
    (g,) = torch.autograd.grad(strategy.distillation(logits, targets), logits)
    assert (g[:, :2].abs() > 0).any()
    assert not g[:, 2:].any()
    after = strategy.teacher.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_equal_networks_look_at_the_same_places(make, train) -> None:
    strategy = make.started(LwM(), train)
    make.next_task(strategy, train)
    assert strategy.maps_of == "encoder.9"  # the last pooling, two places a side
    x = train.batch(torch.arange(6))[0]
    old, _, b = attention(strategy.teacher, strategy.maps_of, x, None, 2, leaf=True)
    new, logits, _ = attention(strategy.net, strategy.maps_of, x, b, 2, leaf=False)
    torch.testing.assert_close(logits, strategy.net(x))
    assert float(attention_loss(new, old).detach()) == pytest.approx(0, abs=1e-6)


def test_the_attention_term_reaches_the_student(make, train) -> None:
    strategy = make.started(LwM(), train)
    make.next_task(strategy, train)
    with torch.no_grad():
        for p in strategy.net.parameters():
            p += 0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))
    x = train.batch(torch.arange(20))[0]
    old, _, b = attention(strategy.teacher, strategy.maps_of, x, None, 2, leaf=True)
    new, _, _ = attention(strategy.net, strategy.maps_of, x, b, 2, leaf=False)
    attention_loss(new, old).backward()
    gradients = {name: p.grad for name, p in strategy.net.named_parameters()}
    assert gradients["encoder.0.weight"].abs().max() > 0
    # through the weights w_k, which are slopes of the score: only a graph of the gradient gets there
    assert gradients["head.weight"][:2].abs().max() > 0


def test_the_attention_term_reaches_a_student_with_self_attention(make, train) -> None:
    encoder = models.embedder("mobilenetv2_attention", dim=8, in_channels=1, image_size=8, seed=0)
    strategy, x = LwM(), train.batch(torch.arange(4))[0]
    strategy.start(make.context(Net(encoder), train))
    grow(strategy.net, make.tasks[0], 0, 0)
    strategy.begin_task(train)
    make.next_task(strategy, train)
    with torch.no_grad():
        strategy.net.encoder.neck.weight += 0.1
    strategy.loss(x, torch.tensor([0, 1, 4, 0])).backward()
    slopes = strategy.net.encoder.backbone.attention.in_proj_weight.grad
    assert torch.isfinite(slopes).all()
    assert slopes.abs().max() > 0
