"""The commands beside ``book`` and ``run`` say what is there and what to do, and start at once."""

from __future__ import annotations

import io
import subprocess
import sys

import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedlib import paths
from fedlib.book import execute
from fedlib.cli import app, console, doctor
from fedlib.runs import RunSpec, Store

SPEC = RunSpec("test.experiment", {"seed": 3, "profile": "smoke"}, {"digits": "00"}, ("fedlib.errors",))


def _invoke(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_command_line_starts_without_heavy_imports():
    code = "import sys, fedlib.cli; print({'torch', 'pandas', 'numpy', 'papermill'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_help_names_every_command():
    output = _invoke("--help").output
    assert [name for name in ("run", "book", "runs", "data", "doctor") if name not in output] == []


@pytest.fixture
def stored():
    metrics = pd.DataFrame({"seed": [3], "metric": ["accuracy"], "value": [0.5]})
    return Store().compute(SPEC, lambda workspace: workspace.finish(metrics))


def test_runs_are_listed_shown_explained_and_removed(stored):
    assert stored.key in _invoke("runs", "list").output
    assert _invoke("runs").output == _invoke("runs", "list").output
    shown = _invoke("runs", "show", stored.key[:6]).output
    assert "accuracy" in shown
    assert "smoke" in shown
    assert "nothing to compute" in _invoke("runs", "why", stored.key).output
    assert _invoke("runs", "remove", stored.key).exit_code == 0
    assert "0 runs, 0 MiB, and 0 unfinished" in _invoke("runs", "list").output


def test_why_names_the_code_that_changed(stored, monkeypatch):
    from fedlib.runs import code

    real = code.module_hashes
    monkeypatch.setattr(code, "module_hashes", lambda *a, **k: real(*a, **k) | {"fedlib.errors": "changed"})
    assert "code of fedlib.errors" in _invoke("runs", "why", stored.key).output


def test_only_runs_that_today_s_code_cannot_use_are_pruned(stored, monkeypatch):
    from fedlib.runs import code

    assert _invoke("runs", "prune").output == "0 runs, 0 MiB\n"
    real = code.module_hashes
    monkeypatch.setattr(code, "module_hashes", lambda *a, **k: real(*a, **k) | {"fedlib.errors": "changed"})
    assert f"would remove test.experiment {stored.key}" in _invoke("runs", "prune", "--dry-run").output
    assert stored.path.exists()
    assert f"removed test.experiment {stored.key}" in _invoke("runs", "prune").output
    assert not stored.path.exists()


def test_damaged_run_is_reported_not_read(stored):
    (stored.path / "metrics.csv").write_text("seed,metric,value\n3,accuracy,0.9\n")
    result = _invoke("runs", "show", stored.key)
    assert result.exit_code == 1
    assert "damaged: metrics.csv" in result.output


@pytest.mark.parametrize("content", ["{}", "[]", "not JSON", '{"seconds": "long"}'])
def test_list_survives_a_damaged_run_and_shows_the_others(stored, content):
    other = RunSpec("test.other", {"seed": 4}, {}, ("fedlib.errors",))
    metrics = pd.DataFrame({"seed": [4], "metric": ["accuracy"], "value": [0.5]})
    whole = Store().compute(other, lambda workspace: workspace.finish(metrics))
    (stored.path / "environment.json").write_text(content)
    result = _invoke("runs", "list")
    assert result.exit_code == 0, result.exception
    assert whole.key in result.output


@pytest.mark.parametrize("command", ["show", "why", "remove"])
def test_unknown_run_key_is_one_line_and_status_2(command):
    result = _invoke("runs", command, "abc")
    assert result.exit_code == 2
    assert result.output.splitlines() == [
        "error: run key 'abc' matches 0 runs; 'fedlib runs list' shows the keys"
    ]


def test_data_says_what_is_here_and_how_to_get_the_rest():
    lines = _invoke("data").output.splitlines()
    (digits,) = [line for line in lines if line.startswith("digits")]
    (absent,) = [line for line in lines if line.startswith("cifar10")]
    assert "real" in digits
    assert "yes" in digits
    assert " no " in absent
    assert "download=True" in absent
    assert str(paths.data_root()) in lines[-1]


def test_doctor_finds_each_gap_between_lock_and_installation(tmp_path):
    lock = tmp_path / "requirements.lock"
    lock.write_text(
        "# a comment\n"
        "numpy==0.0.1  # via fedlib\n"
        "no-such-package==1.0\n"
        "nvidia-no-such-library==1.0\n"
        "for-another-system==1.0 ; sys_platform == 'win32'\n"
        "pytest>=1\n"
    )
    found = {finding.what: finding for finding in doctor.packages(lock)}
    assert found["packages"].found == "1 of 4 as locked"
    assert found["numpy"].state == doctor.NOTE
    assert "locked is ==0.0.1" in found["numpy"].found
    assert found["no-such-package"].state == doctor.MISSING
    assert found["nvidia-no-such-library"].state == doctor.NOTE
    assert "pip install" in found["no-such-package"].what_to_do
    assert "for-another-system" not in found


def test_doctor_finds_a_number_of_workers_that_is_none(monkeypatch):
    monkeypatch.setenv("FEDLIB_WORKERS", "abc")
    (found,) = [finding for finding in doctor.machine() if finding.what == "workers"]
    assert found.state == doctor.MISSING
    assert "'abc'" in found.what_to_do


def test_files_that_cannot_be_removed_are_one_line(stored, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("fedlib.runs.store.shutil.rmtree", refuse)
    result = _invoke("runs", "remove", stored.key)
    assert result.exit_code == 1
    assert result.output.splitlines() == [f"error: {stored.path}: Permission denied"]


def test_doctor_exits_non_zero_only_if_something_needed_is_missing(tmp_path, monkeypatch):
    lock = tmp_path / "requirements.lock"
    lock.write_text("pytest>=1\n")
    monkeypatch.setattr(paths, "repo_root", lambda: tmp_path)
    result = _invoke("doctor")
    assert result.exit_code == 0
    assert "nothing needed is missing" in result.output
    lock.write_text("no-such-package==1.0\n")
    result = _invoke("doctor")
    assert result.exit_code == 1
    assert "1 needed things are missing" in result.output


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "log"])
def test_progress_leaves_one_line_for_each_notebook(layout, write_notebook, terminal):
    (job,) = execute.plan([write_notebook(layout, "x/page", "1")], layout)
    text = io.StringIO()
    out = Console(file=text, force_terminal=terminal, width=100)
    with console.listener(out) as listener:
        listener.started(job)
        listener.finished(execute.Outcome("x/page", 2.0, execute.Failure(4, "ValueError: [no] good", None)))
    lines = text.getvalue().splitlines()
    assert any("x/page: FAILED after 2 s in cell 4: ValueError: [no] good" in line for line in lines)
    if not terminal:
        assert lines[0] == "x/page: running (never executed)"
        assert len(lines) == 2
