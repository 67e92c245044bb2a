"""Recorded results are re-derived from their tables, and damage is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from fedlib.book.layout import Layout
from fedlib.cli import app
from fedlib.errors import InputError
from fedlib.experiments import settings as profiles
from fedlib.report import recorded, register, verdict
from fedlib.report.payloads import Collected, RunInfo, RunPayload, VerdictPayload
from fedlib.report.verdict import DataUse, Provenance
from fedlib.runs import code

ENTRY = next(
    entry
    for entry in register.load().entries
    if entry.kind == "claim" and entry.paper == "mpt" and len(entry.parts) == 1
    if entry.parts[0].direction == ">" and entry.parts[0].against is not None and not entry.parts[0].over
)
ORIGIN = Provenance(data=(DataUse(name="digits", kind="real"),), profile="overnight")


def sides(difference: float) -> pd.DataFrame:
    rule = ENTRY.parts[0]
    each = dict.fromkeys(rule.against_each, "other")
    return pd.DataFrame(
        [
            {"seed": s} | each | {"ours": 0.8 + 0.01 * s + difference, "theirs": 0.8 + 0.012 * s}
            for s in range(5)
        ]
    )


def collected(difference: float = 0.1) -> list[Collected]:
    found = verdict.judge_sides(ENTRY, [sides(difference)], ORIGIN)
    info = RunInfo(
        name="mpt.tracking", keys=("0123456789",), data=ORIGIN.data, profile="overnight", changed=(),
        seeds=(0, 1, 2, 3, 4), seconds=600.0, versions={"torch": "2"},
    )  # fmt: skip
    return [
        Collected(page=ENTRY.notebook, payload=VerdictPayload(verdict=found)),
        Collected(page=ENTRY.notebook, payload=RunPayload(runs=(info,))),
    ]


def record(root: Path, difference: float = 0.1) -> Path:
    parameters = {"profile": "overnight", "rare_classes": [8]}
    recorded.write(
        collected(difference), root, parameters=parameters, machine="Linux, 2 cores", date="2026-01-02"
    )
    return root / "mpt" / "overnight" / f"{ENTRY.id}.yaml"


@pytest.mark.parametrize("difference", [0.1, -0.1])
def test_a_recorded_verdict_is_computed_from_its_table(tmp_path: Path, difference: float) -> None:
    path = record(tmp_path, difference)
    (item,) = recorded.load(tmp_path)
    assert item.verdict == collected(difference)[0].payload.verdict  # type: ignore[union-attr]
    assert item.record.seconds == 600
    assert item.record.seeds == (0, 1, 2, 3, 4)
    assert item.record.parameters["rare_classes"] == [8]
    assert "2026-01-02" in str(item)
    assert "word" not in path.read_text(), "a verdict is computed and never stored"
    table = path.with_name(f"{ENTRY.id}-1.csv")
    rows = pd.read_csv(table)
    rows["ours"], rows["theirs"] = rows["theirs"], rows["ours"]
    rows.to_csv(table, index=False)
    (other,) = recorded.load(tmp_path)
    assert other.verdict.word != item.verdict.word


def test_settings_that_changed_since_are_named(tmp_path: Path) -> None:
    path = record(tmp_path)
    (item,) = recorded.load(tmp_path)
    assert item.record.changed_since == ()
    content = yaml.safe_load(path.read_text())
    content["settings"]["rounds"] = 7
    path.write_text(yaml.safe_dump(content))
    (item,) = recorded.load(tmp_path)
    assert item.record.changed_since == ("rounds",)
    assert "other rounds than today" in str(item)


def test_settings_that_the_numbers_do_not_depend_on_are_not_named(tmp_path: Path) -> None:
    path = record(tmp_path)
    content = yaml.safe_load(path.read_text())
    content["settings"]["rare_classes"] = [0]  # the page's parameters have others
    content["settings"]["backbones"] = {}  # the claim compares none
    path.write_text(yaml.safe_dump(content))
    (item,) = recorded.load(tmp_path)
    assert item.record.changed_since == ()


def _unreadable(path: Path) -> None:
    path.write_text("claim: [")


def _without_table(path: Path) -> None:
    path.with_name(f"{ENTRY.id}-1.csv").unlink()


def _short_table(path: Path) -> None:
    path.with_name(f"{ENTRY.id}-1.csv").write_text("seed,ours\n0,1.0\n")


def _words(path: Path) -> None:
    table = path.with_name(f"{ENTRY.id}-1.csv")
    table.write_text(table.read_text().replace("0.8", "many", 1))


def _other_profile(path: Path) -> None:
    path.write_text(path.read_text().replace("profile: overnight", "profile: paper"))


def _other_claim(path: Path) -> None:
    path.write_text(path.read_text().replace(f"claim: {ENTRY.id}", "claim: MPT-99"))


def _seed_without_run(path: Path) -> None:
    table = path.with_name(f"{ENTRY.id}-1.csv")
    rows = pd.read_csv(table)
    rows["seed"] += 1
    rows.to_csv(table, index=False)


@pytest.mark.parametrize(
    "damage",
    [_unreadable, _without_table, _short_table, _words, _other_profile, _other_claim, _seed_without_run],
)
def test_damage_is_refused_by_name(tmp_path: Path, damage: Any) -> None:
    path = record(tmp_path)
    damage(path)
    with pytest.raises(InputError, match=f"recorded result mpt/overnight/{ENTRY.id}"):
        recorded.load(tmp_path)


def test_the_larger_profile_is_shown(tmp_path: Path) -> None:
    record(tmp_path)
    (item,) = recorded.load(tmp_path)
    paper = item.model_copy(
        update={
            "record": item.record.model_copy(
                update={"provenance": ORIGIN.model_copy(update={"profile": "paper"})}
            )
        }
    )
    assert recorded.by_claim([paper, item])[ENTRY.id] is paper


def test_the_recorded_results_of_this_project_can_be_derived_again(repo: Path) -> None:
    for item in recorded.load(Layout(repo).recorded):
        assert item.record.provenance.profile in ("overnight", "paper")
        assert item.verdict.word in register.WORDS
        assert item.verdict.parts, f"{item.record.claim} has no measured comparison"
        assert item.record.parameters["profile"] == item.record.provenance.profile
        profiles.load(item.verdict.entry.paper, item.record.provenance.profile)


def test_a_new_record_makes_no_notebook_stale(repo: Path) -> None:
    hashes = code.module_hashes(["fedlib.report", "fedlib.report.recorded"])
    kept = Layout(repo).recorded.resolve()
    assert "fedlib.report.recorded" in hashes
    assert not [name for name in hashes if (code.PACKAGE.parent / name).resolve().is_relative_to(kept)]


def test_one_command_computes_a_page_and_records_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLIB_HOME", str(tmp_path / "home"))
    short = 'overrides={"rounds": 2, "departure_round": 1, "num_clients": 2}'
    arguments = ["record", "mpt/fig-5-communication", "-p", short, "-p", "rare_classes=[8]", "-p", "seeds=3"]
    arguments += ["--into", str(tmp_path / "recorded")]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    (item,) = recorded.load(tmp_path / "recorded")
    assert item.record.claim == "MPT-10"
    assert item.record.seeds == (0, 1, 2)
    assert item.record.parameters["overrides"]["rounds"] == 2
    assert set(item.record.provenance.changed) >= {"rounds", "seeds", "rare_classes"}
    assert item.verdict.word in register.WORDS
    again = CliRunner().invoke(app, arguments)
    assert "running" not in again.output, "a page that is up to date is not computed again"
    assert "recorded MPT-10" in again.output


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["mpt/no-such-page"], "no-such-page"),
        (["mpt/fig-5-communication", "--profile", "quick"], "profile"),
        (["mpt/fig-5-communication", "-p", "rounds=3"], "rounds"),
    ],
)
def test_record_refuses_before_it_computes(arguments: list[str], named: str) -> None:
    result = CliRunner().invoke(app, ["record", *arguments])
    assert result.exit_code == 2
    assert result.output.startswith("error: ")
    assert named in result.output
