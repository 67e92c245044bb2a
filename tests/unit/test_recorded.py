"""Recorded results are re-derived from their tables, and damage is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from fedlib.errors import InputError
from fedlib.experiments import settings as profiles
from fedlib.report import recorded, register, verdict
from fedlib.report.evidence import Collected, RunInfo, RunPayload, VerdictPayload
from fedlib.report.verdict import DataUse, Provenance

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
    recorded.write(collected(difference), machine="Linux, 2 cores", date="2026-01-02", root=root)
    return root / "mpt" / "overnight" / f"{ENTRY.id}.yaml"


@pytest.mark.parametrize("difference", [0.1, -0.1])
def test_a_recorded_verdict_is_computed_from_its_table(tmp_path: Path, difference: float) -> None:
    path = record(tmp_path, difference)
    (item,) = recorded.load(tmp_path)
    assert item.verdict == collected(difference)[0].payload.verdict  # type: ignore[union-attr]
    assert item.record.seconds == 600
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


@pytest.mark.parametrize(
    "damage", [_unreadable, _without_table, _short_table, _words, _other_profile, _other_claim]
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


def test_the_recorded_results_of_this_project_can_be_derived_again() -> None:
    for item in recorded.load():
        assert item.record.provenance.profile in ("overnight", "paper")
        assert item.verdict.word in register.WORDS
        assert item.verdict.parts, f"{item.record.claim} has no measured comparison"
        seeds = {info.seeds for info in item.record.runs}
        assert seeds, f"{item.record.claim} names no run"
        profiles.load(item.verdict.entry.paper, item.record.provenance.profile)
