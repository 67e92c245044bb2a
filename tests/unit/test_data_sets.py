"""The data-set type, its card and the readers: what is in them, and that bad input is named."""

from __future__ import annotations

import copy
import gzip
import importlib
import io
import json
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import medmnist
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torchvision.datasets import CIFAR10

from fedlib import data
from fedlib.data import Card, ImageSet, Normalizer, Split, catalogue, cifar10, digits, fashion_mnist
from fedlib.data import medmnist as medmnist_sets
from fedlib.errors import InputError

CARD = Card(name="toy", title="Toy", kind="surrogate", source="made up", licence="none", citation="none")


def images(n: int = 6, side: int = 4, channels: int = 1) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, side, side, channels), dtype=np.uint8)


def split(n: int = 6, **options: int) -> Split:
    return Split(images(n, **options), np.arange(n) % 3)


def toy(**splits: Split) -> ImageSet:
    return ImageSet("toy", {"train": split(), "test": split(3), **splits}, ("a", "b", "c"), CARD)


# --- the type


@pytest.mark.parametrize(
    ("pixels", "labels", "named"),
    [
        (images().astype(np.float32), np.arange(6), "float32"),
        (np.where(images() > 128, np.nan, 0.5), np.arange(6), "NaN"),
        (images()[..., 0], np.arange(6), r"\(6, 4, 4\)"),
        (images(channels=3)[..., :2], np.arange(6), r"\(6, 4, 4, 2\)"),
        (images(), np.arange(5), r"\(5,\)"),
        (images(), np.arange(6)[:, None], r"\(6, 1\)"),
        (images(), np.arange(6, dtype=np.uint8), "uint8"),
        (images(), np.array([0, 1, np.nan, 0, 1, 2]), "1 NaN"),
        (images(), np.array([0, 1, -1, 0, 1, 2]), "label of image 2 is -1"),
        (images(0), np.arange(0), "empty"),
    ],
)
def test_bad_arrays_are_refused_with_the_offending_value(
    pixels: np.ndarray, labels: np.ndarray, named: str
) -> None:
    with pytest.raises(InputError, match=named):
        Split(pixels, labels)


def test_label_without_class_is_named() -> None:
    with pytest.raises(InputError, match="label of train image 2 of toy is 2; allowed: 0 to 1"):
        ImageSet("toy", {"train": split(), "test": split(2)}, ("a", "b"), CARD)


def test_missing_and_unknown_splits_are_named() -> None:
    with pytest.raises(InputError, match="no split 'test'"):
        ImageSet("toy", {"train": split()}, ("a", "b", "c"), CARD)
    with pytest.raises(InputError, match="'valid'"):
        toy(valid=split())
    with pytest.raises(InputError, match="shape"):
        toy(val=split(side=5))


def test_all_black_images_are_noticed() -> None:
    black = images(3)
    black[1] = 0
    with pytest.raises(InputError, match=r"1 of 3 test images have one colour only \(first: 1\)"):
        toy(test=Split(black, np.arange(3)))


def test_all_black_images_of_the_publisher_are_kept_and_noted_once() -> None:
    black = images(3)
    black[1] = 7
    card = Card("toy", "Toy", "real", "made up", "none", "none", verified=True)
    made = ImageSet("toy", {"train": split(), "test": Split(black, np.arange(3))}, ("a", "b", "c"), card)
    assert made.card.notes == ("Kept as they are: 1 of 3 test images have one colour only (first: 1).",)
    assert pickle.loads(pickle.dumps(made)).card == made.card


def test_card_says_real_or_surrogate() -> None:
    with pytest.raises(InputError, match="synthetic"):
        Card("toy", "Toy", "synthetic", "made up", "none", "none")  # type: ignore[arg-type]


def test_checksum_sees_every_pixel_label_and_shape() -> None:
    same = toy()
    assert same.checksum == toy().checksum == same.card.checksum
    pixels, labels = images(), np.arange(6) % 3
    flipped = pixels.copy()
    flipped[5, 3, 3, 0] ^= 1
    moved = labels.copy()
    moved[0] = 1
    others = [Split(flipped, labels), Split(pixels, moved), Split(images(5), labels[:5])]
    assert len({same.checksum, *(toy(train=other).checksum for other in others)}) == 4
    assert toy(val=split()).checksum != same.checksum


def test_arrays_cannot_be_changed_behind_the_checksum() -> None:
    made = toy()
    with pytest.raises(ValueError, match="read-only"):
        made.train.images[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        made.train.labels[0] = 0


def test_image_set_survives_the_way_to_a_worker_process() -> None:
    made = toy()
    for other in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert other.checksum == made.checksum
        assert other.class_names == made.class_names


# --- names


def test_unknown_names_and_options_are_refused_with_what_is_allowed() -> None:
    with pytest.raises(InputError, match="did you mean 'digits'"):
        data.load("digit")
    with pytest.raises(InputError, match="did you mean 'bloodmnist'"):
        data.load("medmnist:blodmnist")
    with pytest.raises(InputError, match="medmnist:pathmnist"):
        data.load("medmnist")
    with pytest.raises(InputError, match="digits"):
        data.find("digits:8")
    with pytest.raises(InputError, match="no option 'size'; allowed: none"):
        data.load("digits", size=28)
    with pytest.raises(InputError, match="did you mean 'as_rgb'"):
        data.load("medmnist:bloodmnist", as_rbg=True)
    with pytest.raises(InputError, match="size is 32; allowed: 28, 64, 128, 224"):
        data.find("medmnist:bloodmnist", size=32)
    with pytest.raises(InputError, match="None"):
        data.load(None)  # type: ignore[arg-type]


def test_every_available_name_can_be_looked_for(tmp_path: Path) -> None:
    for name in data.available():
        found = data.find(name, root=tmp_path)
        assert found.name == name
        assert found.present == (name == "digits" or name.startswith(("roadworld", "cells")))
        assert found.present or any(how in found.what_to_do for how in ("download=True", "data_scripts/"))


def test_absent_data_say_where_they_were_looked_for_and_what_to_do(tmp_path: Path) -> None:
    for name in ("fashion-mnist", "cifar10", "medmnist:bloodmnist"):
        with pytest.raises(InputError, match="download=True") as caught:
            data.load(name, root=tmp_path)
        assert str(tmp_path) in str(caught.value)


def test_data_folder_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path))
    assert str(tmp_path) in data.find("cifar10").what_to_do


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10", "medmnist:breastmnist"])
def test_failed_download_names_the_folder_and_leaves_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*args: Any, **kwargs: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", no_network)
    with pytest.raises(InputError, match="download into") as caught:
        data.load(name, root=tmp_path, download=True)
    assert str(tmp_path) in str(caught.value)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_interrupted_download_is_not_taken_for_the_file(tmp_path: Path) -> None:
    def half(folder: Path) -> None:
        (folder / "set.npz").write_bytes(b"half")
        raise OSError("connection lost")

    with pytest.raises(InputError, match="connection lost"):
        data.files.fetch(tmp_path, half, ["set.npz"], "Try again.")
    assert list(tmp_path.iterdir()) == []


# --- digits


def test_digits_are_scikit_learns_in_a_fixed_stratified_split() -> None:
    made = data.load("digits")
    original = load_digits()
    assert (len(made.train), len(made.test)) == (1352, 445)
    assert made.shape == (8, 8, 1)
    for label in range(10):
        ours = np.concatenate([s.images[s.labels == label] for s in made.splits.values()])
        theirs = original.images[original.target == label]
        back = np.rint(ours[..., 0] * (digits.INK / 255))  # the scaling is reversible
        assert sorted(back.reshape(len(back), -1).tolist()) == sorted(
            theirs.reshape(len(theirs), -1).tolist()
        )
        assert abs((made.test.labels == label).sum() - len(theirs) / 4) < 1


def test_digits_never_change() -> None:
    assert data.load("digits").checksum == "27b5c0b2b2a03365cbef4ec8a39f8b273b89a6b18313c817da7886afa8953745"


# --- MedMNIST


def npz(folder: Path, name: str = "breastmnist", side: int = 28, **changes: Any) -> Path:
    """Write a small file in MedMNIST's format; a change to None leaves the key out."""
    rng = np.random.default_rng(1)
    arrays: dict[str, Any] = {}
    for key, n in (("train", 8), ("val", 4), ("test", 4)):
        arrays[f"{key}_images"] = rng.integers(0, 256, (n, side, side), dtype=np.uint8)
        arrays[f"{key}_labels"] = (np.arange(n, dtype=np.uint8) % 2)[:, None]
    arrays.update(changes)
    path = folder / f"{name}.npz"
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
    return path


def test_real_pneumoniamnist_is_read_whole(sample_data: Path) -> None:
    made = data.load("medmnist:pneumoniamnist", root=sample_data / "pneumoniamnist")
    assert {key: len(s) for key, s in made.splits.items()} == {"train": 4708, "val": 524, "test": 624}
    assert made.class_names == ("normal", "pneumonia")
    assert np.bincount(made.train.labels).tolist() == [1214, 3494]
    assert made.train.images.mean() / 255 == pytest.approx(0.5719, abs=1e-4)  # as the publisher states it
    assert not made.card.verified
    assert "Not the official file" in made.card.notes[1]
    with np.load(sample_data / "pneumoniamnist" / "pneumoniamnist.npz") as archive:
        assert np.array_equal(made.test.images[..., 0], archive["test_images"])


def test_grey_sets_keep_one_channel_unless_asked_and_say_so(sample_data: Path) -> None:
    root = sample_data / "pneumoniamnist"
    grey = data.load("medmnist:pneumoniamnist", root=root)
    rgb = data.load("medmnist:pneumoniamnist", root=root, as_rgb=True)
    assert (grey.in_channels, rgb.in_channels) == (1, 3)
    assert (rgb.train.images == grey.train.images).all()
    assert grey.card.notes[0] == "Grey."
    assert "as_rgb" in rgb.card.notes[0]
    assert grey.checksum != rgb.checksum
    with pytest.raises(InputError, match="as_rgb is 3; allowed: True, False"):
        data.load("medmnist:pneumoniamnist", root=root, as_rgb=3)


def test_any_file_in_the_format_is_read_under_the_flag_it_is_named_after(
    sample_data: Path, tmp_path: Path
) -> None:
    (tmp_path / "medmnist").mkdir()
    source = sample_data / "mednist" / "mednist5400_28.npz"
    (tmp_path / "medmnist" / "octmnist.npz").write_bytes(source.read_bytes())
    # MedNIST has six classes, OCTMNIST four: the labels give it away
    with pytest.raises(InputError, match=r"octmnist\.npz.*allowed: 0 to 3"):
        data.load("medmnist:octmnist", root=tmp_path)
    (tmp_path / "medmnist" / "organamnist.npz").write_bytes(source.read_bytes())
    made = data.load("medmnist:organamnist", root=tmp_path)
    assert not made.card.verified
    assert any("official: " in note for note in made.card.notes)
    # three of these real pictures are black; so few are no sign of a damaged copy, but they are told
    assert any("3 of 3600 train images have one colour only" in note for note in made.card.notes)


@pytest.mark.parametrize("size", [64, 128, 224])
def test_larger_sizes_are_read_from_files_named_as_the_package_names_them(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npz(tmp_path)  # of 28 pixels, not to be taken for the larger one
    path = npz(tmp_path, f"breastmnist_{size}", side=size)
    assert data.find("medmnist:breastmnist", root=tmp_path, size=size).where == path
    assert medmnist.BreastMNIST(split="test", root=str(tmp_path), size=size).imgs.shape == (4, size, size)
    monkeypatch.setitem(medmnist.INFO["breastmnist"], f"MD5_{size}", data.files.md5(path))
    made = data.load("medmnist:breastmnist", root=tmp_path, size=size)
    assert made.shape == (size, size, 1)
    assert {key: s.images.shape for key, s in made.splits.items()} == {
        "train": (8, size, size, 1),
        "val": (4, size, size, 1),
        "test": (4, size, size, 1),
    }
    assert made.card.title == f"BreastMNIST ({size} x {size})"
    assert made.card.verified
    assert f"breastmnist_{size}.npz" in made.card.source


def test_official_checksum_makes_a_verified_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = npz(tmp_path)
    monkeypatch.setitem(medmnist.INFO["breastmnist"], "MD5", data.files.md5(path))
    made = data.load("medmnist:breastmnist", root=tmp_path)
    assert made.card.verified
    assert made.card.notes == ("Grey.",)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"val_labels": None}, "has no val_labels"),
        ({"train_images": np.zeros((8, 64, 64), np.uint8)}, r"train_images has shape \(8, 64, 64\)"),
        ({"train_images": np.zeros((8, 28, 28, 3), np.uint8)}, r"\(n, 28, 28\)"),
        ({"train_images": np.full((8, 28, 28), np.nan)}, "train: images hold 6272 NaN"),
        ({"test_images": np.zeros((4, 28, 28), np.uint8)}, "4 of 4 test images have one colour"),
        ({"test_labels": np.zeros((4, 14), np.uint8)}, r"test_labels has shape \(4, 14\)"),
        ({"test_labels": np.zeros((3, 1), np.uint8)}, r"test_labels has shape \(3, 1\)"),
        ({"test_labels": np.array([[0.0], [1.0], [np.nan], [1.0]])}, "test_labels has type float64"),
        ({"test_labels": np.array([[0], [1], [2], [1]])}, "label of test image 2 .* is 2; allowed: 0 to 1"),
        ({"test_labels": np.array([[0], [1], [-1], [1]])}, "test: label of image 2 is -1"),
        (
            {"test_images": np.zeros((0, 28, 28), np.uint8), "test_labels": np.zeros((0, 1), int)},
            "split is empty",
        ),
        ({"train_labels": np.array([[{}]] * 8, dtype=object)}, "damaged"),
    ],
)
def test_malformed_npz_is_named_with_its_path(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    path = npz(tmp_path, **change)
    with pytest.raises(InputError, match=named) as caught:
        data.load("medmnist:breastmnist", root=tmp_path)
    assert str(caught.value).startswith(str(path))


def test_damaged_archives_are_named_with_their_path(tmp_path: Path) -> None:
    path = npz(tmp_path)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[1000] ^= 255  # inside the first array: only the zip's own checksum can tell
    single = io.BytesIO()
    np.save(single, np.zeros(3))
    for content in (whole[: len(whole) // 2], bytes(damaged), b"", b"<html>404</html>", single.getvalue()):
        path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            data.load("medmnist:breastmnist", root=tmp_path)
        assert str(caught.value).startswith(str(path))


def test_multi_label_set_is_refused_clearly() -> None:
    assert "chestmnist" not in medmnist_sets.members()
    with pytest.raises(InputError, match="14 yes/no findings"):
        data.load("medmnist:chestmnist")


def test_every_other_2d_set_of_the_package_is_offered_at_every_size() -> None:
    two_d = [flag for flag in medmnist.INFO if not flag.endswith("3d") and flag != "chestmnist"]
    assert medmnist_sets.members() == two_d
    for flag in two_d:
        maker = getattr(medmnist, medmnist.INFO[flag]["python_class"])
        assert tuple(maker.available_sizes) == medmnist_sets.SIZES
        for size in medmnist_sets.SIZES:
            assert not data.find(f"medmnist:{flag}", size=size).present


def test_download_goes_through_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(self: Any) -> None:
        npz(Path(self.root), "breastmnist")

    monkeypatch.setattr(medmnist.BreastMNIST, "download", download)
    made = data.load("medmnist:breastmnist", root=tmp_path, download=True)
    assert len(made.train) == 8
    assert data.find("medmnist:breastmnist", root=tmp_path).where == tmp_path / "medmnist" / "breastmnist.npz"


# --- Fashion-MNIST


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + array.tobytes()


def fashion(root: Path, compress: bool) -> Path:
    folder = root / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    for stem, n in (("train", 20), ("t10k", 10)):
        for kind, array in (
            ("images-idx3", images(n, side=28)[..., 0]),
            ("labels-idx1", np.arange(n, dtype=np.uint8) % 10),
        ):
            content = idx(array)
            name = f"{stem}-{kind}-ubyte"
            (folder / (name + ".gz" if compress else name)).write_bytes(
                gzip.compress(content) if compress else content
            )
    return folder


def test_fashion_mnist_reads_unpacked_files(tmp_path: Path) -> None:
    fashion(tmp_path, compress=False)
    made = data.load("fashion-mnist", root=tmp_path)
    assert np.array_equal(made.train.images, images(20, side=28))
    assert made.test.labels.tolist() == list(range(10))
    assert made.class_names[9] == "Ankle boot"
    assert not made.card.verified


def test_fashion_mnist_checks_compressed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fashion(tmp_path, compress=True)
    with pytest.raises(InputError, match="published: 8d4fb7e6c68d591d4c3dfef9ec88bf0d") as caught:
        data.load("fashion-mnist", root=tmp_path)
    assert str(caught.value).startswith(str(folder / "train-images-idx3-ubyte.gz"))
    monkeypatch.setattr(
        fashion_mnist, "MD5", {name: data.files.md5(folder / name) for name in fashion_mnist.MD5}
    )
    made = data.load("fashion-mnist", root=tmp_path)
    assert made.card.verified
    assert np.array_equal(made.train.images, images(20, side=28))


@pytest.mark.parametrize("content", [b"", b"\x00\x00\x08\x03", b"\x80\x04K\x01.", idx(np.zeros(3, np.uint8))])
def test_damaged_fashion_mnist_is_named(content: bytes, tmp_path: Path) -> None:
    path = fashion(tmp_path, compress=False) / "t10k-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        data.load("fashion-mnist", root=tmp_path)
    assert str(caught.value).startswith(str(path))


def test_truncated_fashion_mnist_is_named(tmp_path: Path) -> None:
    path = fashion(tmp_path, compress=False) / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="damaged"):
        data.load("fashion-mnist", root=tmp_path)


# --- CIFAR-10


class Trap:
    """Unpickling this is noticed."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return warnings.warn, ("unpickled",)


def cifar(root: Path, monkeypatch: pytest.MonkeyPatch, pixels: np.ndarray, labels: list[int]) -> Path:
    """Write the format of cifar-10-batches-py and make its checksums the published ones."""
    folder = root / CIFAR10.base_folder
    folder.mkdir()
    batch = {"data": pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1), "labels": labels}
    for name in ["data_batch_1", "test_batch"]:
        (folder / name).write_bytes(pickle.dumps(batch))
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    sums = {path.name: data.files.md5(path) for path in folder.iterdir()}
    monkeypatch.setattr(CIFAR10, "train_list", [["data_batch_1", sums["data_batch_1"]]])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": sums["batches.meta"]})
    return folder


def test_cifar10_reads_real_pictures_upright(
    sample_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(next((sample_data / "cifar10-subset").glob("*.zip"))) as archive:
        entries = [name for name in sorted(archive.namelist()) if "train" in name and "truck" in name][:5]
        pixels = np.stack([np.asarray(Image.open(io.BytesIO(archive.read(name)))) for name in entries])
    cifar(tmp_path, monkeypatch, pixels, [9] * len(pixels))
    made = data.load("cifar10", root=tmp_path)
    assert np.array_equal(made.train.images, pixels)
    assert made.class_names[made.train.labels[0]] == "truck"
    assert made.card.verified


def test_foreign_cifar10_files_are_never_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cifar(tmp_path, monkeypatch, images(4, side=32, channels=3), [0, 1, 2, 3])
    (folder / "test_batch").write_bytes(pickle.dumps(Trap()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match="published") as caught:
            data.load("cifar10", root=tmp_path)
    assert str(caught.value).startswith(str(folder / "test_batch"))
    assert len(cifar10._md5()) == 3


# --- tensors


def test_normalised_training_images_have_mean_0_and_std_1() -> None:
    made = data.load("digits")
    x, y = Normalizer.fit(made.train.images).tensors(made.train)
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    assert float(x.mean()) == pytest.approx(0, abs=1e-5)
    assert float(x.std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_each_channel_is_normalised_by_its_own_statistics() -> None:
    pixels = images(50, side=8, channels=3) // np.array([1, 2, 4], dtype=np.uint8)
    fitted = Normalizer.fit(pixels)
    assert fitted.mean == pytest.approx((pixels / 255).mean(axis=(0, 1, 2)), abs=1e-12)
    assert fitted.std == pytest.approx((pixels / 255).std(axis=(0, 1, 2)), abs=1e-12)
    x = fitted.apply(pixels)
    assert x.shape == (50, 3, 8, 8)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert x.mean(dim=(0, 2, 3)).abs().max() < 1e-4
    assert (x.std(dim=(0, 2, 3)) - 1).abs().max() < 1e-3


def test_known_pixels_are_scaled_as_by_hand() -> None:
    pixels = np.array([0, 51, 102, 255], dtype=np.uint8).reshape(1, 2, 2, 1)
    x = Normalizer(mean=(0.2,), std=(0.4,)).apply(pixels)
    assert x.flatten().tolist() == pytest.approx([-0.5, 0.0, 0.5, 2.0], abs=1e-6)


def test_loading_and_normalising_give_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = data.load("digits")
        Normalizer.fit(made.train.images).tensors(made.train)


def test_bad_images_are_refused_before_normalising() -> None:
    fitted = Normalizer.fit(images())
    with pytest.raises(InputError, match="3 channels; fitted to 1"):
        fitted.apply(images(channels=3))
    with pytest.raises(InputError, match="float64"):
        fitted.apply(images() / 255)
    with pytest.raises(InputError, match="channel 0 is 9 in every pixel"):
        Normalizer.fit(np.full((2, 4, 4, 1), 9, dtype=np.uint8))
    with pytest.raises(InputError, match="0 images"):
        Normalizer.fit(images(0))


def test_card_can_be_written_as_json() -> None:
    card = data.load("digits").card
    assert json.loads(json.dumps(vars(card)))["licence"] == "CC BY 4.0"


def test_every_data_set_has_a_card_before_it_is_loaded() -> None:
    cards = []
    for module in map(importlib.import_module, {**catalogue.MODULES, **catalogue.DRIVING}.values()):
        cards += module.cards() if hasattr(module, "cards") else [module.CARD]
    assert [card.name for card in cards] == data.available()
    for card in cards:
        assert card.kind == ("surrogate" if card.name.startswith(("roadworld", "cells")) else "real")
        assert card.licence
        assert card.source
        assert card.citation
        assert not card.verified  # nothing has been looked at yet
