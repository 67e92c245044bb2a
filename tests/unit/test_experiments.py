"""Settings, federated training as a run, and the experiments of the pages at a tiny size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedlib.data import partition
from fedlib.errors import InputError
from fedlib.experiments import foundations, mpt, settings
from fedlib.experiments.federated import Bench, trajectory_of
from fedlib.experiments.mpt_scenario import bench_of, scores
from fedlib.experiments.mpt_tracking import cells_of
from fedlib.experiments.pool import run_all
from fedlib.experiments.study import Study
from fedlib.federation.tasks import ImageData
from fedlib.methods.federated.fedavg import FedAvg
from fedlib.runs import Store

TINY = {"rounds": 2, "seeds": 1, "num_clients": 3}


@pytest.mark.parametrize("paper", settings.papers())
@pytest.mark.parametrize("profile", settings.PROFILES)
def test_every_profile_is_valid(paper: str, profile: str) -> None:
    loaded = settings.load(paper, profile)
    assert loaded.profile == profile


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sedes": 3}, "setting is 'sedes'.*did you mean 'seeds'"),
        ({"rounds": 0}, "rounds is 0"),
        ({"rounds": "ten"}, "rounds is 'ten'"),
        ({"lr": -0.1}, "lr is -0.1"),
        ({"lr": True}, "lr is True"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"remaining_fractions": [0.0]}, r"remaining_fractions.0 is 0.0"),
        ({"remaining_fractions": [1.5]}, r"remaining_fractions.0 is 1.5"),
        ({"rare_classes": []}, "rare_classes"),
        ({"rounds": 5, "departure_round": 5}, "departure_round is 5; allowed: below rounds = 5"),
        ({"num_clients": 1}, "num_clients is 1"),
    ],
)
def test_bad_settings_are_refused_with_the_value_and_what_is_allowed(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        settings.load("mpt", "quick", change)


def test_unknown_papers_and_profiles_are_refused() -> None:
    with pytest.raises(InputError, match="profile is 'quik'.*did you mean 'quick'"):
        settings.load("mpt", "quik")
    with pytest.raises(InputError, match="paper is 'mtp'"):
        settings.load("mtp", "quick")


def test_named_values_of_none_keep_the_profile_and_whole_numbers_are_floats() -> None:
    loaded = settings.load("mpt", "quick", {"lr": 1}, seeds=None, rare_classes=[3])
    assert (loaded.lr, loaded.seeds, loaded.rare_classes) == (1.0, 3, (3,))


def test_unknown_data_and_models_are_refused_before_any_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedlib.runs.store.Store.compute", lambda *_: pytest.fail("computed"))
    with pytest.raises(InputError, match="data set is 'digit'"):
        foundations.readouts(settings.load("foundations", "smoke", {"dataset": "digit"}))
    with pytest.raises(InputError, match="model is 'cnn4'"):
        foundations.readouts(settings.load("foundations", "smoke", {"model": "cnn4"}))
    with pytest.raises(InputError, match="rare_class is 10"):
        mpt.preliminary(settings.load("mpt", "smoke", {"rare_classes": [10]}))
    with pytest.raises(InputError, match="2000"):
        foundations.averaging(settings.load("foundations", "smoke", {"num_clients": 2000}))


def test_training_is_a_run_that_is_found_again_and_depends_on_what_it_should() -> None:
    bench = Bench.of(settings.load("foundations", "smoke", TINY))
    split = partition.iid(bench.labels, 3, 0)
    first = bench.train(bench.method(), split, 0)
    again = bench.train(bench.method(), split, 0)
    assert (first.reused, again.reused) == (False, True)
    assert first.key == again.key
    others = [
        bench.train(bench.method(lr=0.01), split, 0),
        bench.train(bench.method(), split, 1),
        bench.train(bench.method(), partition.iid(bench.labels, 3, 1), 0),
        bench.train(bench.method(), split, 0, participation=0.5),
    ]
    assert len({first.key, *(run.key for run in others)}) == 5
    assert list(trajectory_of(first).rounds) == [0, 1, 2]
    assert set(first.metrics.columns) == {"seed", "round", "client", "split", "metric", "value"}


def test_repeats_share_no_initial_weights() -> None:
    bench = Bench.of(settings.load("foundations", "smoke", TINY))
    one, two = bench.build_model(0), bench.build_model(1)
    assert all(not torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters()) if a.dim() > 1)


def test_held_out_samples_are_never_in_a_batch_after_the_departure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader is instrumented: the labels of every training batch are recorded with their round."""
    rare, last = 8, 1
    seen: dict[int, set[int]] = {}
    current: list[int] = []
    original_batch, original_update = ImageData.batch, FedAvg.client_update

    def batch(self: ImageData, indices: torch.Tensor) -> Any:
        for round in current:
            seen.setdefault(round, set()).update(self.labels[indices.numpy()].tolist())
        return original_batch(self, indices)

    def client_update(self: FedAvg, *args: Any, **kwargs: Any) -> Any:
        current.append(args[4].round)
        try:
            return original_update(self, *args, **kwargs)
        finally:
            current.clear()

    monkeypatch.setattr(ImageData, "batch", batch)
    monkeypatch.setattr(FedAvg, "client_update", client_update)
    bench = Bench.of(settings.load("foundations", "smoke", TINY | {"rounds": 3}))
    split = partition.departure(bench.labels, 3, rare, 0.2, seed=0)
    held_out = np.flatnonzero(bench.labels == rare)
    bench.train(bench.method(), split, 0, leaves={0: last}, held_out=held_out, held_out_after=last, workers=1)
    assert {round: rare in labels for round, labels in seen.items()} == {1: True, 2: False, 3: False}
    seen.clear()
    bench.train(bench.method(), split, 0, leaves={0: last}, workers=1)
    assert rare in seen[2], "without holding out, the remaining samples are trained on"


def test_shared_rounds_are_computed_once_and_change_no_bit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    computed: list[int] = []
    original = FedAvg.client_update

    def client_update(self: FedAvg, *args: Any, **kwargs: Any) -> Any:
        computed.append(args[4].round)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(FedAvg, "client_update", client_update)
    bench = Bench.of(settings.load("foundations", "smoke", TINY | {"rounds": 3}))
    split = partition.departure(bench.labels, 3, 8, 0.2, seed=0)
    held_out = np.flatnonzero(bench.labels == 8)
    ways: list[dict[str, Any]] = [
        {"leaves": {0: 2}, "held_out": held_out, "held_out_after": 2}, {"leaves": {0: 2}}, {}
    ]  # fmt: skip
    runs = {}
    for common in (0, 2):
        store = Store(tmp_path / str(common))
        computed.clear()
        runs[common] = [
            bench.train(bench.method(), split, 0, common=common, workers=1, store=store, **way)
            for way in ways
        ]
        assert (computed.count(1), computed.count(2), computed.count(3)) == (9 if not common else 3,) * 2 + (
            7,
        )
    for alone, shared in zip(runs[0], runs[2], strict=True):
        assert alone.key == shared.key
        files = [sorted(path for path in (run.path / "trajectory").rglob("*.*")) for run in (alone, shared)]
        assert [path.name for path in files[0]] == [path.name for path in files[1]]
        assert all(a.read_bytes() == b.read_bytes() for a, b in zip(*files, strict=True))


def test_the_preliminary_study_has_the_columns_that_its_claims_need() -> None:
    study = mpt.preliminary(settings.load("mpt", "smoke"))
    conditions = ["seed", "round", "condition", "rare_class", "remaining", "phase", "readout", "distance"]
    assert list(study.metrics.columns) == [*conditions, "metric", "value"]
    after = study.select(condition="departure", phase="after")
    assert set(after["readout"]) == {"head", "remaining", "frozen", "oracle"}
    assert set(study.select(condition="no-departure")["readout"]) == {"head", "ncm"}
    assert not study.metrics["value"].isna().any()


def test_conditions_agree_until_the_departure() -> None:
    study = mpt.preliminary(settings.load("mpt", "smoke"))
    before = study.select(phase="before")
    keys = ["round", "readout", "distance", "metric"]
    leaving = before[before["condition"] == "departure"].set_index(keys)["value"]
    staying = before[before["condition"] == "no-departure"].set_index(keys)["value"]
    pd.testing.assert_series_equal(leaving, staying)


def test_results_do_not_depend_on_the_number_of_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    frames = []
    for workers in ("1", "2"):
        monkeypatch.setenv("FEDLIB_WORKERS", workers)
        monkeypatch.setenv("FEDLIB_HOME", str(tmp_path / workers))
        frames.append(mpt.preliminary(settings.load("mpt", "smoke", {"rare_classes": [3, 8]})).metrics)
    pd.testing.assert_frame_equal(*frames, check_exact=True)


def test_jobs_keep_their_order_and_surface_their_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLIB_WORKERS", "2")
    assert run_all(lambda job, _: job * 2, [1, 2, 3]) == [2, 4, 6]
    assert run_all(lambda job, workers: workers, [1, 2]) == [1, 1]
    assert run_all(lambda job, _: torch.get_num_threads(), [1, 2]) == [1, 1]
    assert run_all(lambda job, _: torch.get_num_threads(), [1]) == [1]
    with pytest.raises(ZeroDivisionError):
        run_all(lambda job, _: 1 // job, [1, 0, 2])


def test_a_study_selects_rows_and_refuses_empty_selections() -> None:
    study = Study((), pd.DataFrame({"a": [1, 2, 2], "value": [0.1, 0.2, 0.3]}))
    assert len(study.select(a=2)) == 2
    assert len(study.select(a=[1, 2])) == 3
    with pytest.raises(ValueError, match="no row has"):
        study.select(a=3)


def test_nothing_is_written_outside_the_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    work, state, temporary = (tmp_path / name for name in ("work", "state", "temporary"))
    for folder in (work, temporary):
        folder.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("FEDLIB_HOME", str(state))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    foundations.readouts(settings.load("foundations", "smoke", TINY))
    assert list(work.iterdir()) == []
    assert list(temporary.iterdir()) == []
    assert [path.name for path in state.iterdir()] == ["runs"]


def test_skew_grows_as_alpha_falls() -> None:
    config = settings.load("foundations", "smoke")
    share = {}
    for alpha in (0.1, 1000.0):
        counts = foundations.label_counts(config, alpha).to_numpy()
        full = counts[counts.sum(1) > 0]
        share[alpha] = float(np.mean(full.max(1) / full.sum(1)))
    assert share[0.1] > 0.3 > 0.2 > share[1000.0]


def test_the_floor_is_the_score_of_a_constant_answer() -> None:
    config = settings.load("mpt", "smoke")
    floors = mpt.constant_answers(config)
    assert list(floors.index) == list(config.tasks)
    for task, row in floors.iterrows():
        own = config.for_task(str(task))
        labels = bench_of(own).part("test").labels
        (rare,) = own.rare_classes
        constant = scores(labels, np.full_like(labels, rare), int(rare), 10)
        assert row["rare_f1"] == pytest.approx(constant["rare_f1"])
        assert row["accuracy"] == pytest.approx(np.bincount(labels).max() / len(labels))


def test_neighbouring_cells_share_no_rounds_so_that_they_need_not_wait() -> None:
    cells = cells_of(settings.load("mpt", "smoke", seeds=2), ["mpt", "fedavg"])
    assert [(cell.departure.seed, cell.training) for cell in cells] == [
        (0, "holdout"), (1, "holdout"), (0, "train"), (1, "train")
    ]  # fmt: skip
