"""The harness: bits, bounds, schedule, bad input."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedlib.data.class_tasks import task_split
from fedlib.data.tensors import Normalizer
from fedlib.errors import InputError
from fedlib.federation.tasks import ImageData
from fedlib.methods.continual.harness import OCT_ORDER, Suite, run
from fedlib.methods.continual.registry import CATEGORIES, METHODS, method
from fedlib.methods.continual.training import Training, augmented

TINY = {
    "ewc": {"samples": 6, "strength": 10.0},
    "mas": {"samples": 6},
    "rwalk": {"samples": 6},
    "muc_mas": {"samples": 6, "side_epochs": 2},
    "gpm": {"samples": 20},
    "icarl": {"exemplars": 10},
    "eeil": {"exemplars": 10, "tuning_epochs": 1, "noise": True},
    "gr": {"iterations": 4, "hidden": 12, "latent": 3, "lr": 1e-3},
    "bir": {"iterations": 4, "hidden": 12, "latent": 3, "lr": 1e-3},
}

# penalty or projection off; the suite's scope of the cross-entropy that makes it fine-tuning
OFF = [
    ("ewc", {"strength": 0.0, "samples": 6}, "current"),
    ("ewc", {"strength": 0.0, "samples": 6, "fisher": "batch", "include_head": True}, "seen"),
    ("mas", {"strength": 0.0, "samples": 6}, "current"),
    ("mas", {"strength": 0.0, "norm": "batch", "merge": "average", "include_head": True}, "seen"),
    ("si", {"strength": 0.0}, "current"),
    ("si", {"strength": 0.0, "include_head": True}, "seen"),
    ("rwalk", {"strength": 0.0, "samples": 6}, "current"),
    ("rwalk", {"strength": 0.0, "score": "path"}, "seen"),
    ("lwf", {"strength": 0.0}, "current"),
    ("lwf", {"strength": 0.0, "form": "kl"}, "seen"),
    ("lwm", {"strength": 0.0, "gamma": 0.0}, "seen"),
    ("muc_mas", {"strength": 0.0, "samples": 6, "side_epochs": 1}, "current"),
    ("icarl", {"strength": 0.0, "exemplars": 0, "predict_with": "head"}, "seen"),
    ("eeil", {"strength": 0.0, "exemplars": 0}, "seen"),
    ("owm", {"alpha": float("inf"), "rest": "train", "momentum": None, "clip": None}, "seen"),
    (
        "owm",
        {"alpha": float("inf"), "rest": "train", "update": "online", "momentum": None, "clip": None},
        "current",
    ),
]


@pytest.fixture(scope="module")
def fine_tuned(go):
    return {scope: go(method("finetune"), scope) for scope in ("current", "seen")}


@pytest.mark.parametrize(("name", "options", "scope"), OFF)
def test_strength_zero_is_fine_tuning_to_the_bit_batchnorm_buffers_included(
    name, options, scope, go, fine_tuned, same_bits
) -> None:
    found = go(method(name, **options), scope)
    assert same_bits(found.net, fine_tuned[scope].net)


def test_joint_training_on_one_task_is_fine_tuning(go, same_bits) -> None:
    tasks = ((0, 1, 2, 3, 4),)
    assert same_bits(go(method("joint"), tasks=tasks).net, go(method("finetune"), tasks=tasks).net)


@pytest.mark.parametrize("name", METHODS)
def test_one_seed_gives_the_same_bits_and_another_seed_others(name, go, same_bits) -> None:
    options = TINY.get(name, {})
    first = go(method(name, "small", **options))
    torch.manual_seed(99)
    again = go(method(name, "small", **options))
    other = go(method(name, "small", **options), seed=1)
    assert same_bits(first.net, again.net)
    assert first.history == again.history
    for scope in ("taw", "cil", "all"):
        assert np.array_equal(first.accuracy.values[scope], again.accuracy.values[scope])
    assert not same_bits(first.net, other.net)
    assert (first.accuracy.values["cil"] <= first.accuracy.values["taw"]).all()
    assert first.budget["options"].keys() == method(name).options().keys()
    assert first.budget["train_samples"] == [40, 60]


@pytest.mark.parametrize("name", METHODS)
def test_what_is_stored_is_measured(name, go) -> None:
    strategy = method(name, "small", **TINY.get(name, {}))
    found = go(strategy)
    kept = strategy.state_dict()
    assert found.stored_bytes[-1] == sum(x.numel() * x.element_size() for x in kept.values())
    assert (found.stored_bytes[-1] == 0) == (name == "finetune")
    assert strategy.category in CATEGORIES
    assert strategy.stores
    assert strategy.label


def test_joint_learns_all_and_fine_tuning_forgets(make) -> None:
    train, test = make.blobs(200, 1, classes=4), make.blobs(120, 2, classes=4)
    training = Training(epochs=8, batch_size=16, lr=0.05, patience=None, augment=False)
    suite = dataclasses.replace(Suite.verma(), training=training)
    tasks = task_split((0, 1, 2, 3), 2)
    results = {
        name: run(method(name), make.encoder(), train, test, tasks, suite, 0)
        for name in ("finetune", "joint")
    }
    assert results["joint"].summary()["cil/avg_acc"] > 90
    forgot = results["finetune"].summary()
    assert forgot["cil/avg_acc"] < 60
    assert forgot["cil/forgetting_paper"] > 80
    # the same network knows the tasks when it is told which one it is in
    assert forgot["taw/avg_acc"] > forgot["cil/avg_acc"] + 20


def test_distillation_keeps_more_of_earlier_digits_than_fine_tuning(make) -> None:
    digits = load_digits()
    images = (digits.images * 255 / 16).astype(np.uint8)[..., None]
    data = ImageData(images, digits.target.astype(np.int64), Normalizer.fit(images))
    train, test = data.subset(np.arange(800)), data.subset(np.arange(800, 1797))
    training = Training(epochs=4, batch_size=16, lr=0.1, patience=None, augment=False)
    suite = dataclasses.replace(Suite.lifelonger(), training=training)
    found = {
        name: run(method(name), make.encoder(), train, test, task_split(range(10), 5), suite, 0).summary()
        for name in ("finetune", "lwf")
    }
    forgotten = {name: row["taw/forgetting_paper"] for name, row in found.items()}
    assert forgotten["lwf"] < forgotten["finetune"] / 2
    assert found["lwf"]["taw/avg_acc"] > found["finetune"]["taw/avg_acc"]


def test_joint_training_can_begin_anew(make, train) -> None:
    strategy = make.started(method("joint", weights="restart"), train)
    first = {name: value.clone() for name, value in strategy.net.state_dict().items()}
    with torch.no_grad():
        for p in strategy.net.parameters():
            p += 1
    make.next_task(strategy, train)
    now = strategy.net.state_dict()
    assert all(
        torch.equal(now[name][: len(value)] if value.ndim else now[name], value)
        for name, value in first.items()
    )
    assert len(strategy.training_data(make.of(train, make.tasks[1]))) == len(train)


def test_rows_outside_the_cross_entropy_keep_their_values(go) -> None:
    training = Training(
        epochs=1, batch_size=16, lr=0.05, momentum=0.9, weight_decay=0.1, patience=None, augment=False
    )
    found = {}
    for scope in ("current", "seen"):
        strategy = method("finetune")
        first = go(strategy, scope, training, tasks=((2, 3),)).net.head.weight
        second = go(strategy, scope, training).net.head.weight
        found[scope] = torch.equal(first, second[:2])
    assert found == {"current": True, "seen": False}


def test_the_best_state_comes_back_and_the_step_size_falls(go) -> None:
    training = Training(
        epochs=30, batch_size=16, lr=3.0, patience=1, lr_min=0.5, augment=False, validation=0.25
    )
    found = go(method("finetune"), training=training, tasks=((0, 1, 2, 3, 4),))
    rates = [row["lr"] for row in found.history]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[0]
    assert len(rates) < 30
    assert found.budget["train_samples"] == [75]


def test_crops_and_flips_keep_pixels_and_pad_with_black(train) -> None:
    x, _ = train.batch(torch.arange(8))
    out = augmented(x, train, torch.Generator().manual_seed(0))
    black = float(train.normalizer.apply(np.zeros((1, 1, 1, 1), dtype=np.uint8)))
    assert out.shape == x.shape
    allowed = torch.cat([x.flatten(), torch.tensor([black])])
    assert all((allowed - v).abs().min() < 1e-5 for v in out.flatten()[::7])
    assert torch.equal(out, augmented(x, train, torch.Generator().manual_seed(0)))


def test_suites_of_the_two_tables() -> None:
    lifelonger, verma = Suite.lifelonger(), Suite.verma()
    training = lifelonger.training
    assert (training.epochs, training.batch_size, training.lr, training.momentum) == (200, 32, 1e-3, 0)
    assert (training.patience, training.lr_factor, training.lr_min) == (5, 3, 1e-4)
    assert (lifelonger.ce_scope, verma.ce_scope) == ("current", "seen")
    assert task_split(OCT_ORDER, 3) == ((0, 3), (1,), (2,))


def test_methods_that_store_samples_are_not_in_the_suite_of_methods_that_store_none(
    make, train, test
) -> None:
    with pytest.raises(InputError, match="stores samples"):
        run(method("icarl"), make.encoder(), train, test, make.tasks, Suite.verma().small(), 0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ewc", {"strength": -1.0}),
        ("ewc", {"fisher": "exact"}),
        ("ewc", {"samples": 0}),
        ("mas", {"a": 1.5}),
        ("si", {"xi": 0.0}),
        ("rwalk", {"interval": 0}),
        ("lwf", {"temperature": 0.0}),
        ("lwm", {"gamma": float("nan")}),
        ("muc_mas", {"side_heads": -1}),
        ("gpm", {"threshold": 1.1}),
        ("owm", {"alpha": 0.0}),
        ("eft", {"group": 0}),
        ("icarl", {"exemplars": 0}),
        ("eeil", {"exemplars": -1}),
        ("gr", {"iterations": 0}),
        ("bir", {"dg_prop": 1.0}),
        ("joint", {"weights": "keep"}),
        ("ewc", {"streng": 1.0}),
        ("ewcc", {}),
    ],
)
def test_bad_options_are_refused_before_anything_runs(name, options) -> None:
    with pytest.raises(InputError, match="allowed"):
        method(name, **options)


def test_bad_runs_are_refused(make, train, test) -> None:
    def attempt(tasks, strategy=None, data=train):
        run(strategy or method("finetune"), make.encoder(), data, test, tasks, Suite.lifelonger().small(), 0)

    with pytest.raises(InputError, match="number of classes"):
        task_split(range(3), 4)
    with pytest.raises(InputError, match="class 7 of task 0 has 0 training samples"):
        attempt(((0, 7), (1,)))
    with pytest.raises(InputError, match="each class in one of them only"):
        attempt(((0, 1), (1, 2)))
    with pytest.raises(InputError, match="one for each class"):
        attempt(make.tasks, method("icarl", exemplars=3))
    with pytest.raises(InputError, match="class 4 of task 1 has 0 training samples"):
        attempt(make.tasks, data=make.of(train, (0, 1, 2, 3)))
    with pytest.raises(InputError, match="lr is -1"):
        Training(lr=-1)


def test_a_loss_that_is_not_finite_names_method_and_task(go) -> None:
    training = Training(epochs=3, batch_size=16, lr=1e30, patience=None, augment=False)
    with pytest.raises(FloatingPointError, match="Finetune: the loss is not finite in epoch . of task 0"):
        go(method("finetune"), training=training)


def test_predict_needs_the_tasks_for_the_task_aware_scope(make, train) -> None:
    strategy = make.started(method("finetune"), train)
    make.next_task(strategy, train)
    x, y = train.batch(torch.arange(10))
    assert set(strategy.predict(x).tolist()) <= {0, 1, 2, 3, 4}
    own = torch.tensor([0 if int(c) in make.tasks[0] else 1 for c in y])
    said = strategy.predict(x, "taw", own)
    assert all(int(c) in make.tasks[int(t)] for c, t in zip(said, own))
    with pytest.raises(InputError, match="allowed"):
        strategy.predict(x, "taw")


def test_a_batch_of_one_sample_is_trained_on_with_the_stored_statistics(make, train, test) -> None:
    training = Training(epochs=1, batch_size=39, lr=0.05, patience=None, augment=False)  # 40 samples: 39 + 1
    suite = Suite(training=training)
    found = run(method("finetune"), make.encoder(), train, test, ((2, 3),), suite, 0)
    assert np.isfinite(found.history[0]["train_loss"])
