"""What notebooks show is complete, accessible, reproducible, and can be read back by the book."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest
from bs4 import BeautifulSoup

from fedlib.errors import InputError
from fedlib.experiments import settings as profiles
from fedlib.report import evidence, register, rendering, verdict
from fedlib.runs import Run

COMMON = {"remaining": 0.02, "round": 13, "phase": "after", "distance": "mahalanobis", "metric": "rare_f1"}
METRICS = pd.DataFrame(
    [
        COMMON
        | {"seed": seed, "condition": condition, "rare_class": rare, "readout": readout}
        | {"value": value + 0.01 * seed}
        for seed in range(3)
        for rare in (1, 8)
        for condition, readout, value in (("departure", "remaining", 0.6), ("no-departure", "ncm", 0.9))
    ]
)
QUICK = profiles.load("mpt", "quick")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = tmp_path / "runs" / "0123456789abcdef0123"
    folder.mkdir(parents=True)
    METRICS.to_csv(folder / "metrics.csv", index=False)
    environment = {
        "python": "3.11.9",
        "torch": "2.14.1",
        "numpy": "1.26.4",
        "fedlib": "0.1.0",
        "cpu": "a processor",
    }
    return Run("mpt.preliminary", folder.name, folder, {"dataset": "digits"}, environment, seconds=12.34)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    bundles: list[dict[str, Any]] = []
    monkeypatch.setattr(evidence, "display", lambda item: bundles.append(item._repr_mimebundle_()))
    return bundles


def page(folder: Path, name: str, *bundles: dict[str, Any]) -> Path:
    """An executed notebook with these outputs, one a cell."""
    node = nbformat.v4.new_notebook()
    for bundle in bundles:
        cell = nbformat.v4.new_code_cell("report.judge(...)")
        cell.outputs = [nbformat.v4.new_output("display_data", data=bundle)]
        node.cells.append(cell)
    path = folder / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(node, path)
    return path


def test_a_run_on_random_numbers_names_no_data_and_changes_no_profile(
    run: Run, shown: list[dict[str, Any]]
) -> None:
    timed = replace(run, name="mpt.server_scaling", config={"seed": 0, "dataset": None})
    evidence.provenance(run, timed, settings=QUICK)
    infos = shown[0][evidence.MIME]["runs"]
    assert [info["data"] for info in infos] == [[{"name": "digits", "kind": "real"}], []]
    assert infos[1]["changed"] == []
    assert "none: random numbers" in shown[0]["text/html"]
    with pytest.raises(InputError, match="no data|names none"):
        evidence.judge("MPT-16", METRICS, run=timed, settings=QUICK)


def test_a_finding_comes_back_from_the_executed_page_with_its_origin(
    run: Run, shown: list[dict[str, Any]], tmp_path: Path
) -> None:
    evidence.finding("few", "MPT loses < once.", run=run, settings=QUICK)
    page(tmp_path, "mpt/somewhere", shown[0])
    ((where, found),) = evidence.findings_of(evidence.collect(tmp_path), "few")
    assert (where, found.text) == ("mpt/somewhere", "MPT loses < once.")
    assert str(found.provenance) == "digits (real), profile quick"
    assert "MPT loses &lt; once. (digits (real), profile quick.)" in shown[0]["text/html"]
    assert evidence.findings_of(evidence.collect(tmp_path), "other") == []


def test_a_verdict_is_a_table_with_caption_and_scoped_headings(run: Run, shown: list[dict[str, Any]]) -> None:
    evidence.judge("MPT-16", METRICS, run=run, settings=QUICK)
    table = BeautifulSoup(shown[0]["text/html"], "html.parser")
    assert table.caption is not None
    assert "MPT-16 (§III, p. 3), on digits (real), profile quick." in table.caption.get_text()
    heads = [cell.get_text() for cell in table.select('thead th[scope="col"]')]
    assert heads == ["the paper says", "paper", "ours: mean ± sd", "gap", "verdict"]
    (row,) = table.select("tbody tr")
    assert row.select_one('th[scope="row"]')
    text = row.get_text(" ")
    assert "0.610 ± 0.010 (3 seeds) against 0.910 ± 0.010" in text
    assert register.TREND in text
    assert shown[0]["text/plain"].startswith("MPT-16: trend reproduced at reduced scale")


def test_a_claim_of_several_parts_has_a_row_for_each(run: Run, shown: list[dict[str, Any]]) -> None:
    both = pd.concat([METRICS, METRICS.assign(metric="rare_recall", value=METRICS.value)])
    both["readout"], both["distance"] = "head", "none"
    # The second part needs two periods, and there is one round: the claim is not attempted, and says why.
    evidence.judge("MPT-21", both, run=[run], settings=QUICK)
    assert "too few rounds" in shown[0]["text/plain"]
    later = pd.concat(
        [both.assign(round=number, value=both.value * 0.9**number) for number in (13, 14, 15, 16)]
    )
    evidence.judge("MPT-21", later, run=[run], settings=QUICK)
    table = BeautifulSoup(shown[1]["text/html"], "html.parser")
    assert len(table.select("tbody tr")) == 3


def test_two_calls_give_the_same_bytes_without_paths_or_dates(run: Run, shown: list[dict[str, Any]]) -> None:
    for _ in range(2):
        evidence.judge("MPT-16", METRICS, run=run, settings=QUICK)
        evidence.provenance(run, run, settings=QUICK)
        evidence.finish()
    first, second = json.dumps(shown[:3]), json.dumps(shown[3:])
    assert first == second
    assert str(run.path) not in first
    assert "/tmp" not in first
    assert "20" + "26" not in first


def test_the_origin_of_the_numbers_is_shown(run: Run, shown: list[dict[str, Any]]) -> None:
    evidence.provenance(
        run, settings=profiles.load("mpt", "quick", {"rounds": 40, "seeds": 4, "device": "cuda"})
    )
    text = BeautifulSoup(shown[0]["text/html"], "html.parser").get_text(" ")
    for words in ("digits (real)", "quick, other rounds", "0, 1, 2", "12.3", "0123456789", "torch 2.14.1"):
        assert words in text
    assert "0123456789a" not in text
    payload = shown[0][evidence.MIME]
    assert payload["kind"] == "run"
    assert payload["runs"][0]["changed"] == ["rounds"]
    evidence.provenance(run, settings=profiles.load("mpt", "quick", seeds=2))
    assert shown[1][evidence.MIME]["runs"][0]["changed"] == ["seeds"]


PAPER = profiles.load("mpt", "paper")


@pytest.mark.parametrize(
    ("config", "changed"),
    [
        ({}, []),
        ({"rounds": PAPER.rounds, "lr": PAPER.lr, "seed": 1, "device": "cpu"}, []),
        ({"rounds": 3}, ["rounds"]),
        ({"lr": 0.5, "model": "cnn4"}, ["model", "lr"]),
        ({"dataset_options": {"version": "v1.0-mini"}}, ["dataset_options"]),
        ({"model": "resnet18"}, []),  # a backbone of the profile
        ({"dataset": "car1000-fine", "model": "resnet18"}, []),  # on a task of the profile
        ({"dataset": "digits"}, ["dataset"]),
    ],
)
def test_a_run_with_other_settings_is_no_run_of_the_profile(
    run: Run, shown: list[dict[str, Any]], config: dict[str, Any], changed: list[str]
) -> None:
    planned = replace(run, config={"dataset": PAPER.dataset})
    evidence.provenance(planned, replace(run, config={"dataset": PAPER.dataset} | config), settings=PAPER)
    assert shown[0][evidence.MIME]["runs"][0]["changed"] == changed


def test_results_with_seeds_that_no_run_has_are_refused(run: Run) -> None:
    more = pd.concat([METRICS, METRICS[METRICS.seed == 0].assign(seed=3)])
    with pytest.raises(InputError, match="results have seed 3, and no run has it"):
        evidence.judge("MPT-16", more, run=run, settings=QUICK)


def test_the_mark_of_the_end_is_small(shown: list[dict[str, Any]]) -> None:
    evidence.finish()
    assert shown == [{"text/plain": "End of page.", evidence.MIME: {"kind": "finished"}}]


def test_text_in_a_table_is_never_markup() -> None:
    row = rendering._row(["<b>a", "b & c"])
    assert row == '<tr><th scope="row">&lt;b&gt;a</th><td>b &amp; c</td></tr>'


def test_what_is_shown_can_be_collected_again(run: Run, shown: list[dict[str, Any]], tmp_path: Path) -> None:
    evidence.judge("MPT-16", METRICS, run=run, settings=QUICK)
    evidence.provenance(run, settings=QUICK)
    evidence.finish()
    executed = tmp_path / "executed"
    page(executed, "mpt/preliminary-drift-study", *shown)
    page(executed, "foundations/fedavg", shown[2])
    page(executed, ".ipynb_checkpoints/old", {evidence.MIME: {"kind": "verdict"}})
    found = evidence.collect(executed)
    assert [(item.page, item.payload.kind) for item in found] == [
        ("foundations/fedavg", "finished"),
        ("mpt/preliminary-drift-study", "verdict"),
        ("mpt/preliminary-drift-study", "run"),
        ("mpt/preliminary-drift-study", "finished"),
    ]
    (judged,) = evidence.verdicts_of(found)
    assert (judged.id, judged.word, judged.ours, judged.gap) == (
        "MPT-16",
        register.TREND,
        "0.610 ± 0.010 (3 seeds) against 0.910 ± 0.010",
        "difference −0.300 [−0.300, −0.300]",
    )
    assert verdict.standings([judged])["MPT-F-loss-by-class"].word == register.TREND


def test_no_executed_page_is_no_payload(tmp_path: Path) -> None:
    assert evidence.collect(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"kind": "rumour"}, "mpt/fig-5, cell 0: result of unknown form"),
        ({"kind": "verdict"}, "verdict"),
        ({"kind": "verdict", "verdict": {"id": "MPT-1", "word": "fine", "sentence": "s"}}, "word"),
        ({"kind": "finished", "extra": 1}, "extra"),
        ([1], "unknown form"),
    ],
)
def test_a_payload_of_unknown_form_names_its_cell(tmp_path: Path, payload: Any, message: str) -> None:
    page(tmp_path, "mpt/fig-5", {evidence.MIME: payload})
    with pytest.raises(InputError, match=message):
        evidence.collect(tmp_path)


def test_a_verdict_on_the_wrong_page_is_refused(tmp_path: Path) -> None:
    found = {"id": "MPT-8", "word": register.TREND, "sentence": "s"}
    page(tmp_path, "mpt/backbones", {evidence.MIME: {"kind": "verdict", "verdict": found}})
    with pytest.raises(InputError, match="mpt/backbones, cell 0: MPT-8 belongs to the page mpt/fig-4"):
        evidence.collect(tmp_path)


def test_an_origin_that_is_not_known_is_refused(run: Run) -> None:
    with pytest.raises(InputError, match="no run is given"):
        evidence.judge("MPT-16", METRICS, run=[], settings=QUICK)
    with pytest.raises(InputError, match="at least one run"):
        evidence.provenance(settings=QUICK)
    with pytest.raises(InputError, match="data set is 'digit'; .*did you mean 'digits'"):
        evidence.judge(
            "MPT-16", METRICS, run=Run("n", "k", run.path, {"dataset": "digit"}, {}), settings=QUICK
        )
    with pytest.raises(InputError, match="needs 'dataset'"):
        evidence.judge("MPT-16", METRICS, run=Run("n", "k", run.path, {}, {}), settings=QUICK)
    with pytest.raises(InputError, match="MPT-99"):
        evidence.judge("MPT-99", METRICS, run=run, settings=QUICK)


def test_nothing_that_is_shown_can_be_executed_when_read() -> None:
    # Payloads are JSON; no part of the report reads a pickle.
    for path in Path(evidence.__file__).parent.rglob("*.py"):
        assert "pickle" not in path.read_text(encoding="utf-8"), path.name
