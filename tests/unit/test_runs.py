"""The run store: computed once, whole or absent, damage noticed, reasons given."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from threadpoolctl import threadpool_info

from fedlib import files
from fedlib.errors import InputError
from fedlib.runs import DamagedRun, RunSpec, Store, Workspace
from fedlib.runs import code as run_code

SPEC = RunSpec("demo.study", {"seed": 0, "lr": 0.1}, {"digits": "abc"}, ("fedlib.seeds",))


def _table(value: float = 1.0) -> pd.DataFrame:
    return pd.DataFrame({"seed": [0], "metric": ["f1"], "value": [value]})


def _finish(workspace: Workspace) -> None:
    workspace.finish(_table(0.1 + 0.2), {"w": torch.arange(3.0)})


def test_a_run_is_computed_once_and_read_back_exactly(tmp_path: Path) -> None:
    store, calls = Store(tmp_path), []

    def function(workspace: Workspace) -> None:
        calls.append(1)
        _finish(workspace)

    first = store.compute(SPEC, function)
    second = store.compute(SPEC, function)
    assert len(calls) == 1
    assert (first.reused, second.reused) == (False, True)
    assert second.metrics["value"].item() == 0.1 + 0.2
    assert torch.equal(second.tensors["w"], torch.arange(3.0))
    assert second.config == {"seed": 0, "lr": 0.1}
    assert "torch" in second.environment
    assert (second.path / "metrics.csv").stat().st_mode & 0o044, "results are readable by others"


def test_a_run_is_computed_with_one_thread_whoever_asks_for_it(tmp_path: Path) -> None:
    seen: list[int] = []

    def compute(workspace: Workspace) -> None:
        seen.append(torch.get_num_threads())
        seen.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        _finish(workspace)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        Store(tmp_path).compute(SPEC, compute)
        assert torch.get_num_threads() == 2, "put back"
    finally:
        torch.set_num_threads(before)
    assert len(seen) > 1
    assert set(seen) == {1}


@pytest.mark.parametrize("name", ["metrics.csv", "tensors.safetensors", "config.json", "checksums.json"])
def test_a_flipped_byte_is_noticed_and_the_run_computed_again(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path)
    path = store.compute(SPEC, _finish).path / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DamagedRun):
        store.show(SPEC.key)
    assert "damaged" in store.why(SPEC)
    assert not store.compute(SPEC, _finish).reused
    assert store.get(SPEC) is not None


def test_a_missing_or_added_file_is_noticed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (store.compute(SPEC, _finish).path / "stray.txt").write_text("x")
    assert store.get(SPEC) is None
    (store.compute(SPEC, _finish).path / "metrics.csv").unlink()
    assert store.get(SPEC) is None


@pytest.mark.parametrize("name", ["checksums.json", "environment.json", "config.json", "key.json"])
@pytest.mark.parametrize("content", ["[]", "3", "{}", "\x00"])
def test_a_file_with_other_content_is_damage_and_nothing_else(
    tmp_path: Path, name: str, content: str
) -> None:
    store = Store(tmp_path)
    (store.compute(SPEC, _finish).path / name).write_text(content)
    assert store.get(SPEC) is None
    assert "damaged" in store.why(SPEC)
    assert store.why(replace(SPEC, config={"seed": 1}))
    assert len(store.list()) <= 1
    assert not store.compute(SPEC, _finish).reused
    store.folder(SPEC).rename(tmp_path / "away")
    store.folder(SPEC).write_text("a file where the run should be")
    assert not store.compute(SPEC, _finish).reused


def test_a_damaged_run_is_removed_by_the_process_that_computes_it_anew(tmp_path: Path) -> None:
    """Looking must not remove: another process may just have repaired it."""
    store = Store(tmp_path)
    path = store.compute(SPEC, _finish).path
    (path / "metrics.csv").write_text("x")
    assert store.get(SPEC) is None
    assert path.exists()


def test_files_of_an_attempt_that_was_stopped_do_not_count(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def stopped(workspace: Workspace) -> None:
        workspace.finish(_table(), {"old": torch.zeros(1)})
        (workspace.folder / ".metrics.csv.tmp").write_text("half")
        raise ValueError("stopped")

    with pytest.raises(ValueError, match="stopped"):
        store.compute(SPEC, stopped)
    with pytest.raises(RuntimeError, match="without Workspace.finish"):
        store.compute(SPEC, lambda workspace: None)
    run = store.compute(SPEC, lambda workspace: workspace.finish(_table()))
    assert run.tensors == {}
    assert not list(run.path.rglob(".*"))


def test_an_unfinished_run_can_be_removed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(RuntimeError):
        store.compute(SPEC, lambda workspace: (workspace.folder / "half").touch())
    assert len(list(store.unfinished())) == 1
    store.remove(SPEC.key[:8])
    assert list(store.unfinished()) == []


def test_words_that_look_like_missing_values_stay_words(tmp_path: Path) -> None:
    table = pd.DataFrame({"seed": [0, 1], "readout": ["None", "NA"], "value": [0.1, None]})
    run = Store(tmp_path).compute(SPEC, lambda workspace: workspace.finish(table))
    assert list(run.metrics["readout"]) == ["None", "NA"]
    assert list(run.metrics["value"].isna()) == [False, True]


def test_an_interrupted_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "value.json"
    files.write_json(path, 1)

    def fails(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(KeyboardInterrupt):
        files.write_json(path, 2)
    assert path.read_text() == "1\n"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_no_run_and_keeps_the_work_done(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def fails(workspace: Workspace) -> None:
        (workspace.folder / "half").write_text("done so far")
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        store.compute(SPEC, fails)
    assert store.get(SPEC) is None
    assert "interrupted" in store.why(SPEC)

    def goes_on(workspace: Workspace) -> None:
        assert (workspace.folder / "half").read_text() == "done so far"
        _finish(workspace)

    store.compute(SPEC, goes_on)
    assert store.get(SPEC) is not None


def test_an_experiment_that_never_finishes_its_workspace_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="without Workspace.finish"):
        Store(tmp_path).compute(SPEC, lambda workspace: None)


def test_a_full_disk_leaves_no_half_file(tmp_path: Path) -> None:
    """The system refuses the write after 4 KiB, as a full disk does."""

    def limited() -> None:
        torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        store = Store(tmp_path)
        try:
            store.compute(SPEC, lambda w: w.finish(_table(), {"w": torch.zeros(100_000)}))
        except OSError:
            os._exit(7)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=limited, daemon=True)
    process.start()
    process.join(60)
    assert process.exitcode == 7
    assert Store(tmp_path).get(SPEC) is None
    left = [path.name for path in tmp_path.rglob("*") if path.is_file() and "safetensors" in path.name]
    assert left == []
    assert Store(tmp_path).compute(SPEC, _finish).path.is_dir()


_SCRIPT = """
    import sys, time
    from pathlib import Path
    import pandas as pd
    from fedlib.runs import RunSpec, Store
    spec = RunSpec("demo.study", {"seed": 0, "lr": 0.1}, {"digits": "abc"}, ("fedlib.seeds",))
    root = Path(sys.argv[1])
    def function(workspace):
        with (root / "calls").open("a") as file:
            file.write("x")
        time.sleep(float(sys.argv[2]))
        workspace.finish(pd.DataFrame({"seed": [0], "metric": ["f1"], "value": [1.0]}))
    print(Store(root / "store").compute(spec, function).key)
"""


def _start(root: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(_SCRIPT), str(root), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_that_want_one_run_compute_it_once(tmp_path: Path) -> None:
    processes = [_start(tmp_path, 1.0) for _ in range(2)]
    keys = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert keys == {SPEC.key}
    assert (tmp_path / "calls").read_text() == "x"


def test_a_killed_process_leaves_no_run_and_no_lock(tmp_path: Path) -> None:
    process = _start(tmp_path, 60.0)
    deadline = time.monotonic() + 60
    while not (tmp_path / "calls").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert Store(tmp_path / "store").get(SPEC) is None
    again = _start(tmp_path, 0.0)
    assert again.communicate(timeout=60)[0].strip() == SPEC.key


def test_the_reason_for_a_computation_names_what_changed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.why(SPEC) == "never computed"
    store.compute(SPEC, _finish)
    assert "nothing to compute" in store.why(SPEC)
    assert store.why(replace(SPEC, config={"seed": 0, "lr": 0.2})) == "changed: setting lr 0.1 -> 0.2"
    long = store.why(replace(SPEC, config={"seed": 0, "lr": list(range(1000))}))
    assert len(long) < 120
    assert store.why(replace(SPEC, data={"digits": "xyz"})) == "changed: data digits"
    assert "code of fedlib.files" in store.why(replace(SPEC, modules=("fedlib.seeds", "fedlib.files")))


def test_code_versions_and_data_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {SPEC.key, replace(SPEC, data={"digits": "x"}).key, replace(SPEC, modules=("fedlib.paths",)).key}
    monkeypatch.setattr("fedlib.runs.store.versions", lambda: {"torch": "0", "numpy": "0"})
    keys.add(RunSpec(SPEC.name, SPEC.config, SPEC.data, SPEC.modules).key)
    assert len(keys) == 4


def test_runs_are_listed_shown_and_removed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run = store.compute(SPEC, _finish)
    assert [found.key for found in store.list()] == [run.key]
    assert store.show(run.key[:6]).path == run.path
    with pytest.raises(InputError, match="matches 0 runs"):
        store.show("ffffffffffffffffffff1")
    store.remove(run.key)
    assert store.list() == ()


def test_imports_inside_functions_and_packages_are_followed() -> None:
    hashes = run_code.module_hashes(["fedlib.experiments.settings"])
    assert {"fedlib", "fedlib.errors", "fedlib.experiments", "fedlib.experiments.settings"} <= hashes.keys()
    assert "fedlib/experiments/profiles/mpt.yaml" in hashes
    assert "fedlib.federation.rounds" not in hashes
    assert "fedlib.experiments.settings" not in run_code.run_hashes(["fedlib.experiments.settings"])
    assert not any(name.endswith(".yaml") for name in run_code.run_hashes(["fedlib.experiments.settings"]))
    assert run_code.imported_modules("def f():\n    from ..b import c", "fedlib.a.x") == {
        "fedlib.b",
        "fedlib.b.c",
    }
