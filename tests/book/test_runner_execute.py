"""Notebooks really executed: what succeeds moves into place, whatever fails is named and hurts no other."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest

from fedlib.book import child, execute, key, processes
from fedlib.book.layout import Layout
from fedlib.book.notebook import read

pytestmark = pytest.mark.slow

GOOD = """\
import os, pathlib, tempfile, warnings
import fedlib.errors
warnings.warn("careful")
print("workers", os.environ.get("FEDLIB_WORKERS"), "size", size)
print(pathlib.Path.home() / "file", pathlib.Path(fedlib.errors.__file__))
print(object())
pathlib.Path.cwd() / "file"
"""
KILLED = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
SLOW = "import time\ntime.sleep(600)"
SIZED = 'profile = "smoke"  # str, one of smoke | quick: size of the run'
OLD = "an earlier executed copy"


class Record:
    """A listener that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def started(self, job: execute.Job) -> None:
        self.heard.append(f"start {job.page}")

    def finished(self, outcome: execute.Outcome) -> None:
        self.heard.append(f"end {outcome.page}")


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Layout:
    root = tmp_path_factory.mktemp("book")
    (root / "requirements.lock").write_text("numpy==1.26.4\n")
    return Layout(root)


@pytest.fixture(scope="module")
def run(book, write_notebook, tmp_path_factory):
    """One execution of five notebooks, two at once: one good, four that fail, each in its own way."""
    notebooks = [
        write_notebook(book, "x/good", GOOD),
        write_notebook(
            book, "x/failing", "ok = 1", "print('before')\nraise ValueError('no good')", "never = 1"
        ),
        write_notebook(book, "x/killed", KILLED),
        write_notebook(book, "x/slow", SLOW, parameters=SIZED),
        write_notebook(book, "x/unfinished", "1", finish=False),
    ]
    for page in ("x/failing", "x/killed", "x/slow"):
        target = book.executed_copy(page)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(OLD)
    record = Record()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLIB_HOME", home := str(tmp_path_factory.mktemp("home")))
        patch.setenv("MPLBACKEND", "agg")
        patch.delenv("FEDLIB_WORKERS", raising=False)
        patch.setitem(execute.TIME_LIMITS, "smoke", 20.0)
        jobs = execute.plan(notebooks, book, {"size": 4})
        outcomes = execute.run(jobs, record, at_once=2)
    return {outcome.page: outcome for outcome in outcomes}, record.heard, home


@pytest.fixture(scope="module")
def good_notebook(run, book):
    return read("x/good", book.sources()["x/good"])


@pytest.fixture(scope="module")
def good(run, book):
    return nbformat.read(book.executed_copy("x/good"), as_version=4)


def _text(node) -> str:
    return "\n".join(output.get("text", "") or output["data"]["text/plain"] for output in key.outputs(node))


def test_success_moves_into_place_with_its_manifest(run, book, good):
    outcomes, heard, _ = run
    assert outcomes["x/good"].failure is None
    assert set(heard) == {f"{word} {page}" for word in ("start", "end") for page in outcomes}
    assert key.damaged_because(book.executed_copy("x/good")) is None
    manifest = key.manifest(book.executed_copy("x/good"))
    assert manifest.parameters == {"size": 4, "colour": "red"}
    assert manifest.given == {"size": 4}
    assert manifest.seconds > 0
    assert 10 < manifest.peak_memory_mib < 4096
    assert manifest.versions["python"] == sys.version.split()[0]
    assert manifest.versions["numpy"]
    assert "fedlib.errors" in manifest.inputs.modules


def test_injected_parameters_are_tagged_and_follow_the_declared_ones(good):
    tags = [cell.metadata.get("tags", []) for cell in good.cells]
    assert tags[1:3] == [["parameters"], ["injected-parameters"]]
    assert "size = 4" in good.cells[2].source
    assert "size 4" in _text(good)


def test_workers_are_one_each_when_several_notebooks_run_at_once(good):
    assert "workers 1" in _text(good)


def test_failure_names_page_cell_and_error(run):
    failure = run[0]["x/failing"].failure
    assert failure.cell == 5  # in the source, without the cells that papermill adds
    assert failure.error == "ValueError: no good"
    assert "before" in failure.copy.read_text()


def test_killed_kernel_does_not_hang_and_names_its_cell(run):
    failure = run[0]["x/killed"].failure
    assert failure.cell == 4
    assert "DeadKernel" in failure.error
    assert run[0]["x/killed"].seconds < 60


def test_time_limit_ends_a_notebook_and_names_its_cell(run):
    failure = run[0]["x/slow"].failure
    assert failure.cell == 4
    assert failure.error == "TimeLimit: not finished after 20 s"


def test_notebook_that_ends_without_its_marker_is_a_failure(run, book):
    assert "marker" in run[0]["x/unfinished"].failure.error
    assert not book.executed_copy("x/unfinished").exists()


def test_failed_notebooks_leave_the_earlier_executed_copy(run, book):
    assert [book.executed_copy(page).read_text() for page in ("x/failing", "x/killed", "x/slow")] == [OLD] * 3


def test_no_process_of_any_run_is_left(run):
    environments = map(_environment, psutil.process_iter())
    assert [found for found in environments if found.get("FEDLIB_HOME") == run[2]] == []


def test_nothing_but_executed_notebooks_lies_in_the_executed_folder(run, book):
    assert {path.name for path in book.executed.rglob("*") if path.is_file()} == {
        "good.ipynb",
        "failing.ipynb",
        "killed.ipynb",
        "slow.ipynb",
    }


def test_no_machine_path_and_no_time_stamp_stays(run, book):
    text = book.executed_copy("x/good").read_text()
    machine = [
        str(Path.home()) + "/",
        str(Path(execute.__file__).parents[2]),
        "/tmp/",
        "ipykernel_",
        "fedlib-notebook",
    ]
    assert [word for word in machine if word in text] == []
    assert re.findall(r"\d{4}-\d{2}-\d{2}T\d{2}", text) == []
    assert [word for word in ('"papermill": {', "start_time", "duration", "iopub") if word in text] == []
    for shown in (
        "~/file",
        "[repository]/fedlib/errors.py",
        "[temporary]/file",
        "<object object>",
        "[cell]:3: UserWarning: careful",
    ):
        assert shown in _text(nbformat.reads(text, as_version=4))


@pytest.mark.usefixtures("no_process")
def test_unchanged_notebook_is_not_executed_again(good_notebook, book):
    record = Record()
    jobs = execute.plan([good_notebook], book, {"size": 4})
    assert [job.reason for job in jobs] == [None]
    assert execute.run(jobs, record) == []
    assert record.heard == []


def test_one_notebook_alone_gets_all_workers_and_repeats_its_results(good_notebook, book, good, tmp_path):
    job = execute.job(good_notebook, tmp_path / "again.ipynb", {"size": 4}, book.lock)
    assert execute.run([job], Record())[0].failure is None
    again = nbformat.read(job.target, as_version=4)
    assert "workers None" in _text(again)
    for node in (again, good):
        node.cells = [c for c in node.cells if "FEDLIB_WORKERS" not in c.source]
    assert again.cells == good.cells


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_kernel_ends_with_an_interrupted_or_killed_runner(book, write_notebook, tmp_path, end):
    pid_file = tmp_path / "pid"
    cell = f"""import os, pathlib, time
pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))
time.sleep(600)"""
    notebook = write_notebook(book, f"x/waiting-{end}", cell)
    code = (
        # A test run that was itself started in the background passes an ignored SIGINT on.
        "import pathlib, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from fedlib.book import execute, notebook, layout\n"
        "class Silent:\n    started = finished = lambda self, item: None\n"
        f"layout = layout.Layout(pathlib.Path({str(book.root)!r}))\n"
        f"jobs = execute.plan([notebook.read({notebook.page!r}, pathlib.Path({str(notebook.path)!r}))], layout)\n"
        "execute.run(jobs, Silent())\n"
    )
    runner = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    try:
        _wait(lambda: pid_file.exists() and pid_file.read_text())
        kernel = int(pid_file.read_text())
        runner.send_signal(end)
        _wait(
            lambda: not psutil.pid_exists(kernel) or psutil.Process(kernel).status() == psutil.STATUS_ZOMBIE
        )
        runner.communicate(timeout=20)
    finally:
        runner.kill()
    assert runner.returncode != 0
    assert not book.executed_copy(notebook.page).exists()


def test_plain_papermill_runs_a_source_notebook(book, write_notebook, tmp_path):
    notebook = write_notebook(book, "x/plain", "print('size', size)")
    output = tmp_path / "out.ipynb"
    command = [
        sys.executable,
        "-m",
        "papermill",
        str(notebook.path),
        str(output),
        "-p",
        "size",
        "7",
        "--no-progress-bar",
    ]
    subprocess.run(
        command, check=True, capture_output=True, env=os.environ | {"PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    )
    assert "size 7" in _text(nbformat.read(output, as_version=4))


@pytest.mark.parametrize(("started", "tries"), [(False, 2), (True, 1)], ids=["no-kernel", "failing-cell"])
def test_only_a_kernel_that_did_not_start_is_tried_again(tmp_path, monkeypatch, started, tries):
    calls = []

    def fail(source, output, **options):
        calls.append(options["kernel_name"])
        when = "2000-01-01" if started else None
        output.write_text(json.dumps({"cells": [{"metadata": {"papermill": {"start_time": when}}}]}))
        raise RuntimeError("Kernel died before replying to kernel_info")

    monkeypatch.setattr("papermill.execute_notebook", fail)
    error = child.execute(tmp_path, {})
    assert error == {"name": "RuntimeError", "text": "Kernel died before replying to kernel_info"}
    assert calls == ["python3"] * tries


def test_processes_that_lost_their_parent_are_ended_by_their_mark():
    mark = "a-mark-of-this-test"
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {processes.MARK: mark})
    assert len(list(processes.marked(mark))) == 1
    processes.end(mark)
    assert list(processes.marked(mark)) == []


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def _wait(condition, seconds: float = 60) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.1)
