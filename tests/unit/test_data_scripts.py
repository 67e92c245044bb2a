"""The scripts for real data: they describe a good copy and refuse an absent or damaged one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(repo: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(repo / "data_scripts" / script), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(repo)},
        check=False,
    )


@pytest.mark.parametrize(
    ("script", "arguments"),
    [("cifar10.py", []), ("fashion_mnist.py", []), ("medmnist_sets.py", ["bloodmnist", "--size", "64"])],
)
def test_absent_data_end_with_what_to_do(
    repo: Path, tmp_path: Path, script: str, arguments: list[str]
) -> None:
    done = run(repo, script, *arguments, "--root", str(tmp_path))
    assert done.returncode == 1
    assert "download=True" in done.stderr
    assert str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_good_copy_is_described(repo: Path, sample_data: Path) -> None:
    done = run(repo, "medmnist_sets.py", "pneumoniamnist", "--root", str(sample_data / "pneumoniamnist"))
    assert done.returncode == 0, done.stderr
    for part in ("in order", "4,708", "normal, pneumonia", "CC BY 4.0", "28 x 28, 1 channel\n"):
        assert part in done.stdout


def test_a_damaged_copy_is_named(repo: Path, tmp_path: Path) -> None:
    path = tmp_path / "bloodmnist.npz"
    path.write_bytes(b"not a zip")
    done = run(repo, "medmnist_sets.py", "bloodmnist", "--root", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(str(path))


def test_no_script_hides_a_package_that_it_needs(repo: Path) -> None:
    packages = {"medmnist", "nuscenes", "torch", "torchvision", "sklearn", "numpy", "typer"}
    assert not packages & {path.stem for path in (repo / "data_scripts").glob("*.py")}
