"""The readers of RSNA, Diabetic Retinopathy and ISIC, on small copies in their formats, whole and damaged."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedlib import data
from fedlib.data import dicom, labelled
from fedlib.errors import InputError

COUNT = 60
ISIC_COLUMNS = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC", "UNK")


def grey_level(label: int) -> int:
    return 30 + 25 * label


def save(path: Path, label: int, size: tuple[int, int] = (48, 40), grey: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(-8, 9, (*size, 3)) + grey_level(label)
    picture = Image.fromarray(pixels.astype(np.uint8))
    (picture.convert("L") if grey else picture).save(path)


def write_rsna(root: Path) -> Path:
    folder = root / "rsna"
    lines = ["patientId,x,y,width,height,Target"]
    for k in range(COUNT):
        name, label = f"p{k:03d}", k % 2
        lines += [f"{name},264.0,152.0,213.0,379.0,1"] * 2 if label else [f"{name},,,,,0"]
        save(folder / "stage_2_train_images" / f"{name}.png", label, grey=True)
    (folder / "stage_2_train_labels.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_diabetic(root: Path) -> Path:
    folder = root / "diabetic"
    lines = ["image,level"]
    for k in range(COUNT):
        name, label = f"{k // 2}_{('left', 'right')[k % 2]}", k % 5
        lines.append(f"{name},{label}")
        save(folder / "train" / f"{name}.jpeg", label)
    (folder / "trainLabels.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_isic(root: Path) -> Path:
    folder = root / "isic"
    lines, meta = ["image," + ",".join(ISIC_COLUMNS)], ["image,age_approx,anatom_site_general,lesion_id,sex"]
    for k in range(COUNT):
        name, label = f"ISIC_{k:07d}", k % 8
        lines.append(name + "," + ",".join("1.0" if c == label else "0.0" for c in range(9)))
        meta.append(f"{name},55,anterior torso,{'' if k == 0 else f'LESION_{k // 3}'},female")
        save(folder / "ISIC_2019_Training_Input" / f"{name}.jpg", label)
    (folder / "ISIC_2019_Training_GroundTruth.csv").write_text("\n".join(lines) + "\n")
    (folder / "ISIC_2019_Training_Metadata.csv").write_text("\n".join(meta) + "\n")
    return folder


WRITERS: dict[str, Callable[[Path], Path]] = {
    "rsna": write_rsna, "diabetic": write_diabetic, "isic": write_isic
}  # fmt: skip
TABLES = {
    "rsna": "stage_2_train_labels.csv",
    "diabetic": "trainLabels.csv",
    "isic": "ISIC_2019_Training_GroundTruth.csv",
}


@pytest.mark.parametrize(
    ("name", "channels", "classes"), [("rsna", 1, 2), ("diabetic", 3, 5), ("isic", 3, 8)]
)
def test_each_picture_has_the_class_of_its_table(
    tmp_path: Path, name: str, channels: int, classes: int
) -> None:
    WRITERS[name](tmp_path)
    made = data.load(name, root=tmp_path, size=32)
    assert made.shape == (32, 32, channels)
    assert made.num_classes == classes
    assert sum(len(split) for split in made.splits.values()) == COUNT
    for split in made.splits.values():
        levels = split.images.mean((1, 2, 3))
        assert np.abs(levels - grey_level(0) - 25 * split.labels).max() < 5
    assert made.card.kind == "real"
    assert data.load(name, root=tmp_path, size=32).checksum == made.checksum


def test_both_eyes_of_a_patient_are_in_one_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_diabetic(tmp_path)
    where: dict[str, set[str]] = {}

    def watched(card: object, jobs: dict[str, list[labelled.crops.Job]], *rest: object) -> None:
        for split, of in jobs.items():
            for job in of:
                where.setdefault(job.path.stem.split("_")[0], set()).add(split)

    monkeypatch.setattr(labelled, "image_set", watched)
    data.load("diabetic", root=tmp_path, size=32)
    assert len(where) == COUNT // 2
    assert all(len(splits) == 1 for splits in where.values())
    assert {split for splits in where.values() for split in splits} == {"train", "val", "test"}


def test_isic_says_when_it_cannot_keep_lesions_together(tmp_path: Path) -> None:
    folder = write_isic(tmp_path)
    assert any("Split by lesion" in note for note in data.load("isic", root=tmp_path, size=32).card.notes)
    (folder / "ISIC_2019_Training_Metadata.csv").unlink()
    assert any("split is by picture" in n for n in data.load("isic", root=tmp_path, size=32).card.notes)


def test_a_cap_takes_as_many_of_each_class(tmp_path: Path) -> None:
    write_rsna(tmp_path)
    made = data.load("rsna", root=tmp_path, size=32, cap=3)
    assert np.bincount(made.train.labels).tolist() == [3, 3]


@pytest.mark.parametrize("name", WRITERS)
def test_an_absent_copy_ends_with_what_to_do(tmp_path: Path, name: str) -> None:
    assert not data.find(name, root=tmp_path).present
    with pytest.raises(InputError, match=f"medical_pictures.py {name}"):
        data.load(name, root=tmp_path)


@pytest.mark.parametrize("name", WRITERS)
def test_one_damaged_picture_is_left_out_and_counted(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = WRITERS[name](tmp_path)
    bad = sorted(path for path in folder.rglob("*") if path.suffix in (".png", ".jpeg", ".jpg"))[0]
    bad.write_bytes(bad.read_bytes()[:100])
    with caplog.at_level(logging.WARNING):
        made = data.load(name, root=tmp_path, size=32)
    assert sum(len(split) for split in made.splits.values()) == COUNT - 1
    assert any("1 picture could not be read" in note for note in made.card.notes)
    assert str(bad) in caplog.text


@pytest.mark.parametrize("name", WRITERS)
def test_an_incomplete_copy_is_refused(tmp_path: Path, name: str) -> None:
    folder = WRITERS[name](tmp_path)
    pictures = [path for path in folder.rglob("*") if path.suffix in (".png", ".jpeg", ".jpg")]
    for path in pictures[:5]:
        path.unlink()
    with pytest.raises(
        InputError, match=rf"5 of {COUNT} listed pictures are absent \(first: .*complete the copy"
    ):
        data.load(name, root=tmp_path, size=32)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("rsna", "Target", "Label", "has no column Target"),
        ("rsna", "p000,,,,,0", "p000,,,,,2", "Target of patient 'p000' is '2'; allowed: 0, 1"),
        ("rsna", "p000,,,,,0", "p001,,,,,0", "'p001' is listed with Target 0 and 1"),
        ("diabetic", "0_left,0", "0_left,5", "level of image '0_left' is '5'; allowed: 0 to 4"),
        ("diabetic", "0_left,0", "0_left", "level of image '0_left' is ''"),
        ("diabetic", "0_left,0", "0_up,0", "image is '0_up'"),
        ("diabetic", "0_left,0", "0_right,0", "'0_right' is listed twice"),
        ("isic", "ISIC_0000000,1.0", "ISIC_0000000,nan", "MEL of image 'ISIC_0000000' is 'nan'; allowed: 0, 1"),
        ("isic", "ISIC_0000000,1.0", "ISIC_0000000,0.0", "has 0 diagnoses; allowed: one of MEL, NV"),
        ("isic", "ISIC_0000000,1.0,0.0", "ISIC_0000000,1.0,1.0", "has 2 diagnoses"),
        ("isic", "ISIC_0000000,", "ISIC_0000001,", "'ISIC_0000001' is listed twice"),
    ],
)  # fmt: skip
def test_a_damaged_table_is_named_with_its_row(
    tmp_path: Path, name: str, old: str, new: str, message: str
) -> None:
    path = WRITERS[name](tmp_path) / TABLES[name]
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=message) as error:
        data.load(name, root=tmp_path, size=32)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00binary", b"image,level\n"])
def test_a_table_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    path = write_diabetic(tmp_path) / TABLES["diabetic"]
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        data.load("diabetic", root=tmp_path, size=32)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize("options", [{"size": 100}, {"cap": 0}, {"cap": True}])
def test_options_out_of_range_are_refused_without_a_copy(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(InputError, match="allowed"):
        data.find("isic", root=tmp_path, **options)


def test_without_pydicom_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_rsna(tmp_path) / "stage_2_train_images"
    for path in folder.iterdir():
        path.rename(path.with_suffix(".dcm"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'fedlib\[dicom\]'"):
        data.load("rsna", root=tmp_path, size=32)


def write_dicom(
    path: Path, pixels: np.ndarray, bits: int, photometric: str = "MONOCHROME2", jpeg: bool = False
) -> None:
    pydicom = pytest.importorskip("pydicom")
    from pydicom.encaps import encapsulate
    from pydicom.uid import (
        ExplicitVRLittleEndian,
        JPEGBaseline8Bit,
        SecondaryCaptureImageStorage,
        generate_uid,
    )

    meta = pydicom.dataset.FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = (
        SecondaryCaptureImageStorage,
        generate_uid(),
    )
    meta.TransferSyntaxUID = JPEGBaseline8Bit if jpeg else ExplicitVRLittleEndian
    file = pydicom.dataset.FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    file.Rows, file.Columns = pixels.shape
    file.SamplesPerPixel, file.PhotometricInterpretation = 1, photometric
    file.BitsAllocated, file.BitsStored, file.HighBit = pixels.itemsize * 8, bits, bits - 1
    file.PixelRepresentation, file.PixelData = 0, pixels.tobytes()
    if jpeg:
        packed = io.BytesIO()
        Image.fromarray(pixels).save(packed, "JPEG", quality=95)
        file.PixelData = encapsulate([packed.getvalue()])
        file["PixelData"].is_undefined_length = True
    file.save_as(path, enforce_file_format=True)


def test_dicom_pictures_are_read_with_all_their_bits(tmp_path: Path) -> None:
    write_dicom(tmp_path / "a.dcm", np.array([[0, 128], [255, 10]], dtype=np.uint8), 8)
    assert dicom.read(tmp_path / "a.dcm").tolist() == [[0, 128], [255, 10]]
    write_dicom(tmp_path / "b.dcm", np.array([[0, 2048], [4095, 0]], dtype=np.uint16), 12)
    assert dicom.read(tmp_path / "b.dcm").tolist() == [[0, 128], [255, 0]]
    write_dicom(tmp_path / "c.dcm", np.array([[0, 255]], dtype=np.uint8), 8, "MONOCHROME1")
    assert dicom.read(tmp_path / "c.dcm").tolist() == [[255, 0]]
    (tmp_path / "d.dcm").write_bytes((tmp_path / "a.dcm").read_bytes()[:200])
    with pytest.raises(ValueError, match="InvalidDicomError|AttributeError|EOFError"):
        dicom.read(tmp_path / "d.dcm")


def test_compressed_dicom_pictures_are_read(tmp_path: Path) -> None:
    pixels = np.linspace(0, 255, 32 * 32).reshape(32, 32).astype(np.uint8)
    write_dicom(tmp_path / "a.dcm", pixels, 8, jpeg=True)
    assert np.abs(dicom.read(tmp_path / "a.dcm").astype(int) - pixels).max() <= 2


def test_rsna_is_read_as_published(tmp_path: Path) -> None:
    folder = write_rsna(tmp_path) / "stage_2_train_images"
    for path in sorted(folder.iterdir()):
        write_dicom(path.with_suffix(".dcm"), np.asarray(Image.open(path)), 8, jpeg=True)
        path.unlink()
    (folder / "p000.dcm").write_bytes(b"\0" * 500)
    made = data.load("rsna", root=tmp_path, size=32)
    assert sum(len(split) for split in made.splits.values()) == COUNT - 1
    levels = made.train.images.mean((1, 2, 3))
    assert np.abs(levels - grey_level(0) - 25 * made.train.labels).max() < 5


def test_the_script_describes_a_copy(repo: Path, tmp_path: Path) -> None:
    write_diabetic(tmp_path)
    command = [sys.executable, str(repo / "data_scripts" / "medical_pictures.py"), "diabetic", "--size", "32"]
    done = subprocess.run([*command, "--root", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Diabetic Retinopathy Detection (EyePACS): in order" in done.stdout
    assert "no retinopathy, mild, moderate, severe, proliferative" in done.stdout
