"""Recorded results: verdicts of long runs, kept with the sources so that every build can show them.

A folder ``<paper>/<profile>/`` holds, for each judged claim, ``<claim>.yaml`` (page, parameters, data, profile and
its settings, runs with their versions and seconds, machine, date) and ``<claim>-<n>.csv`` with the two sides of
its n-th comparison by seed and group (``sides.sides``). Verdicts are computed from the tables whenever they are
read, never stored. The folders lie outside the library, whose files make notebooks stale when they change.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from pydantic import ValidationError

from fedlib import files
from fedlib.errors import InputError
from fedlib.experiments import settings as profiles
from fedlib.report.payloads import Collected, RunInfo, RunPayload, VerdictPayload
from fedlib.report.register import NOT_ATTEMPTED, Entry, Frozen, lookup
from fedlib.report.verdict import Provenance, Verdict, judge_sides

_VARIANTS = {
    "tasks": "task",
    "backbones": "backbone",
    "datasets": "dataset",
}  # settings of the pages that compare these, and the columns


class Record(Frozen):
    """Where a recorded verdict comes from.

    Attributes:
        claim: id in the register.
        page: the notebook that judged it.
        provenance: data and profile of the verdict.
        parameters: the page's parameters in that run.
        runs: the runs of that page.
        machine: the computer in neutral words: system, processor, cores, memory.
        date: day of the recording, YYYY-MM-DD.
        settings: the profile's settings at that time.
    """

    claim: str
    page: str
    provenance: Provenance
    parameters: dict[str, Any]
    runs: tuple[RunInfo, ...]
    machine: str
    date: str
    settings: dict[str, Any]

    @property
    def seconds(self) -> float:
        """Time that the page's runs took to compute, added up."""
        return sum(run.seconds for run in self.runs)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the page's runs."""
        return tuple(sorted({seed for run in self.runs for seed in run.seeds}))

    @property
    def changed_since(self) -> tuple[str, ...]:
        """Names of the settings that have other values in the profile today.

        Those that the page's parameters replaced do not count, nor do tasks or backbones where the claim compares
        none.
        """
        today = _settings(self.page, self.provenance.profile)
        replaced = {name for name, value in self.parameters.items() if value is not None}
        replaced |= (self.parameters.get("overrides") or {}).keys()
        compared = _columns(lookup(self.claim))
        unused = {name for name, column in _VARIANTS.items() if column not in compared}
        names = (today.keys() | self.settings.keys()) - replaced - unused
        return tuple(sorted(name for name in names if today.get(name) != self.settings.get(name)))


class Recorded(Frozen):
    """A recorded verdict and its origin."""

    record: Record
    verdict: Verdict

    def __str__(self) -> str:
        found, origin = self.record, self.verdict.provenance
        old = f", with other {', '.join(found.changed_since)} than today" if found.changed_since else ""
        seeds = f"{len(found.seeds)} seed{'s' if len(found.seeds) > 1 else ''}"
        took = f"{found.seconds / 60:,.0f} min on {found.machine}"
        return f"recorded on {found.date} ({origin}{old}; {seeds}, runs of {took})"


def write(
    collected: Sequence[Collected], root: Path, *, parameters: Mapping[str, Any], machine: str, date: str
) -> list[Path]:
    """Write the verdicts of an executed page as recorded results, and return the files.

    Args:
        collected: payloads of the page; verdicts without a measured comparison, or of a claim
            that this data cannot judge, are left out.
        root: folder of all recorded results.
        parameters: see ``Record``, as machine and date.
        machine: the same.
        date: the same.
    """
    written = []
    for item in collected:
        if not isinstance(item.payload, VerdictPayload):
            continue
        verdict = item.payload.verdict
        if not verdict.parts or verdict.provenance is None or verdict.word == NOT_ATTEMPTED:
            continue
        runs = tuple(
            info
            for other in collected
            if other.page == item.page and isinstance(other.payload, RunPayload)
            for info in other.payload.runs
        )
        profile = verdict.provenance.profile
        record = Record(
            claim=verdict.id, page=item.page, provenance=verdict.provenance, parameters=dict(parameters),
            runs=runs, machine=machine, date=date, settings=_settings(item.page, profile),
        )  # fmt: skip
        folder = root / verdict.entry.paper / profile
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{verdict.id}-*.csv"):
            old.unlink()
        for number, part in enumerate(verdict.parts, start=1):
            path = folder / f"{verdict.id}-{number}.csv"
            files.write_atomic(path, part.table)
            written.append(path)
        path = folder / f"{verdict.id}.yaml"
        content = yaml.safe_dump(
            record.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=110
        )
        files.write_atomic(path, content)
        written.append(path)
    return written


def load(root: Path) -> list[Recorded]:
    """Return all recorded verdicts, computed from their tables, by paper, profile and claim.

    Args:
        root: folder of all recorded results; there may be none.

    Raises:
        InputError: a file that is damaged or does not fit the register; the message names it.
    """
    return [read(path) for path in sorted(root.glob("*/*/*.yaml"))]


def read(path: Path) -> Recorded:
    """Return the recorded verdict whose YAML file is ``path``.

    Raises:
        InputError: a damaged file, or tables that do not fit the claim's comparisons; the message names the file.
    """
    try:
        record = Record.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        entry = lookup(record.claim)
        _check_place(path, record, entry)
        tables = [
            _table(path.with_name(f"{entry.id}-{n}.csv"), entry, n) for n in range(1, len(entry.parts) + 1)
        ]
        if foreign := {int(seed) for table in tables for seed in table["seed"]} - set(record.seeds):
            raise InputError(f"its tables have seed {min(foreign)}, and none of its runs has")
        return Recorded(record=record, verdict=judge_sides(entry, tables, record.provenance))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(f"recorded result {_short(path)}: {place}: {first['msg']}") from None
    except (InputError, OSError, yaml.YAMLError, pd.errors.ParserError) as error:
        raise InputError(f"recorded result {_short(path)}: {error}") from None


def by_claim(found: Iterable[Recorded]) -> dict[str, Recorded]:
    """Return one recorded verdict for each claim: that of the largest profile."""
    order = profiles.PROFILES.index
    ranked = sorted(found, key=lambda item: order(item.record.provenance.profile))
    return {item.record.claim: item for item in ranked}


def _table(path: Path, entry: Entry, number: int) -> pd.DataFrame:
    rule = entry.parts[number - 1]
    table = pd.read_csv(io.StringIO(path.read_text(encoding="utf-8")), float_precision="round_trip")
    wanted = ["seed", *rule.over, *(rule.against_each if rule.against is not None else ()), "ours", "theirs"]
    if missing := [name for name in wanted if name not in table.columns]:
        raise InputError(f"{path.name} lacks the column {missing[0]}")
    if table.empty or not all(
        pd.api.types.is_numeric_dtype(table[name]) for name in ("seed", "ours", "theirs")
    ):
        raise InputError(f"{path.name} has no rows, or values that are no numbers")
    return table


def _check_place(path: Path, record: Record, entry: Entry) -> None:
    place = (path.parent.parent.name, path.parent.name, path.stem)
    if place != (entry.paper, record.provenance.profile, entry.id):
        raise InputError(f"it is of {entry.id}, profile {record.provenance.profile}, and lies elsewhere")
    if record.page != entry.notebook:
        raise InputError(f"its page is {record.page}; {entry.id} belongs to {entry.notebook}")


def _columns(entry: Entry) -> set[str]:
    """Return the condition columns that the claim's rules name."""
    found: set[str] = set()
    for rule in entry.parts:
        found.update(rule.over, rule.pool, rule.against_each, rule.where, rule.ours)
        found.update(rule.against or {}, rule.minus or {})
    return found


def _settings(page: str, profile: str) -> dict[str, Any]:
    part = page.split("/")[0]
    return dict(profiles.load(part, profile).model_dump(mode="json")) if part in profiles.papers() else {}


def _short(path: Path) -> str:
    return "/".join(path.parts[-3:])
