"""Models: size, shape, seeds, memory layout and clear refusals."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from fedlib import models
from fedlib.errors import InputError

NAMES = models.available()


def build(name: str, **changes: int) -> models.Classifier:
    return models.build(name, **{"num_classes": 10, "in_channels": 3, "image_size": 32, "seed": 0, **changes})


@pytest.mark.parametrize(
    ("name", "parameters", "dim"),
    [
        ("cnn3", 94_538, 128),  # MPT specification, golden value M6
        ("cnn3_bn", 94_762, 128),
        ("resnet34", 21_282_122, 512),
        ("wrn16_2", 691_674, 128),
        ("vgg8_bn", 3_918_858, 512),
        ("vgg16_bn", 14_728_266, 512),
        ("mobilenetv2_attention", 2_223_872 + 6_558_720 + 12_810, 1280),
        ("efficientnet_lite0", 3_383_818, 1280),
        ("resnet18", 11_173_962, 512),  # the usual number for ten classes with the small stem
        ("mobilenet_v3_small", 1_528_106, 1024),
        ("vit_tiny", 5_362_762, 192),
    ],
)
def test_parameter_counts_and_feature_lengths(name: str, parameters: int, dim: int) -> None:
    model = build(name)
    assert models.parameter_count(model) == parameters
    assert model.feature_dim == dim
    assert model.num_classes == 10


def test_mobilenet_keeps_the_parameters_of_torchvisions() -> None:
    from torchvision.models import mobilenet_v3_small

    assert models.parameter_count(build("mobilenet_v3_small")) == models.parameter_count(
        mobilenet_v3_small(num_classes=10)
    )


def test_cnn3_has_as_many_parameters_at_any_image_size() -> None:
    assert models.parameter_count(build("cnn3", image_size=64)) == 94_538
    assert models.parameter_count(build("cnn3", image_size=8, in_channels=1)) == 94_538 - 2 * 9 * 32


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (1, 28), (3, 32)])
def test_logits_are_the_head_of_the_features(name: str, channels: int, size: int) -> None:
    model = build(name, in_channels=channels, image_size=size, num_classes=7).eval()
    x = torch.rand(2, channels, size, size)
    z = model.features(x)
    assert z.shape == (2, model.feature_dim)
    assert isinstance(model.head, nn.Linear)
    assert torch.equal(model(x), model.head(z))
    assert model(x).shape == (2, 7)
    assert z.std() > 0


@pytest.mark.parametrize("name", NAMES)
def test_weights_depend_on_the_seed_alone(name: str) -> None:
    torch.manual_seed(1)
    first = build(name, seed=5).state_dict()
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    again = build(name, seed=5).state_dict()
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[key], again[key]) for key in first)


@pytest.mark.parametrize("name", NAMES)
def test_two_repeats_share_no_initial_weights(name: str) -> None:
    first, other = build(name, seed=0), build(name, seed=1)
    random = {key for key, value in first.named_parameters() if value.unique().numel() > 2}
    assert {"head.weight", "head.bias"} <= random
    for (key, a), (_, b) in zip(first.named_parameters(), other.named_parameters()):
        if key in random:
            assert not (a == b).any() or a.numel() > 1000, key
            assert (a == b).float().mean() < 0.01, key


@pytest.mark.parametrize("name", NAMES)
def test_one_training_step_moves_every_parameter(name: str) -> None:
    model = build(name, in_channels=1, image_size=8)
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    nn.functional.cross_entropy(model(x), torch.arange(4)).backward()
    without = [key for key, value in model.named_parameters() if value.grad is None]
    assert without == []


@pytest.mark.parametrize("name", NAMES)
def test_convolutions_are_in_channels_last(name: str) -> None:
    for weight in build(name).parameters():
        assert weight.ndim != 4 or weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "name", ["cnn3", "resnet18", "vgg8_bn", "mobilenet_v3_small", "mobilenetv2_attention"]
)
def test_small_images_are_not_shrunk_away_by_the_stem(name: str) -> None:
    sizes: list[int] = []
    model = build(name).eval()
    stem = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    stem.register_forward_hook(lambda module, args, output: sizes.append(output.shape[-1]))
    model(torch.rand(1, 3, 32, 32))
    assert sizes == [32]


@pytest.mark.parametrize("name", NAMES)
def test_state_is_named_and_comes_back_from_a_file(name: str) -> None:
    model, other = build(name, seed=0).eval(), build(name, seed=1).eval()
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    assert {key.split(".")[0] for key in state} == {"backbone", "head"}
    other.load_state_dict(load(save(state)))
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(model(x), other(x))
    torch.save(state, io.BytesIO())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_classes": 1}, "num_classes of cnn3 is 1; allowed: an integer >= 2"),
        ({"num_classes": 2.0}, "num_classes"),
        ({"num_classes": True}, "num_classes"),
        ({"in_channels": 0}, "in_channels"),
        ({"image_size": 7}, "image_size of cnn3 is 7; allowed: an integer >= 8"),
        ({"seed": -1}, "seed"),
        ({"seed": 0.5}, "seed"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, int], named: str) -> None:
    with pytest.raises(InputError, match=named):
        build("cnn3", **change)


def test_unknown_model_is_refused_with_a_suggestion() -> None:
    with pytest.raises(InputError, match="did you mean 'resnet18'"):
        build("resnet-18")


def test_vit_refuses_sides_that_no_patch_divides() -> None:
    with pytest.raises(InputError, match="image_size is 29"):
        build("vit_tiny", image_size=29)


def test_vit_reads_the_class_token_after_the_last_norm() -> None:
    model = build("vit_tiny").eval()
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(model.features(x), model.backbone.forward_features(x)[:, 0])


def test_small_model_does_not_import_the_libraries_of_the_large_ones() -> None:
    code = (
        "import sys; from fedlib import models; "
        "models.build('cnn3', num_classes=2, in_channels=1, image_size=8, seed=0); "
        "print([name for name in ('timm', 'torchvision') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_each_model_names_its_own_module() -> None:
    assert models.module_of("vit_tiny") == "fedlib.models.vit_tiny"
    with pytest.raises(InputError, match="model"):
        models.module_of("vgg")
