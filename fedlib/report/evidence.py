"""What a notebook shows of its verdicts, its runs and its end, for readers and for the machine.

Each output carries, beside HTML and text, a payload of type ``application/vnd.fedlib+json``. The register pages
and the status page are made from these payloads in the executed notebooks, so they cannot be older than them.
No output holds a path, a date or a name of a machine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
from IPython.display import display
from pydantic import ValidationError

from fedlib.data import card
from fedlib.errors import InputError
from fedlib.experiments import settings as profiles
from fedlib.experiments.settings import Settings
from fedlib.report import verdict as verdicts
from fedlib.report.payloads import (
    ADAPTER,
    MIME,
    AnyPayload,
    Collected,
    FindingPayload,
    FinishedPayload,
    RunInfo,
    RunPayload,
    VerdictPayload,
)
from fedlib.report.register import lookup
from fedlib.report.rendering import runs_html, runs_text, verdict_html, verdict_text
from fedlib.report.verdict import DataUse, Provenance, Verdict
from fedlib.runs import Run

_WHERE_IT_RUNS = ("device",)  # changes no number beyond rounding
_PACKAGES = ("python", "torch", "numpy", "fedlib")


class _Shown:
    """An output with its text, its HTML and its payload."""

    def __init__(self, payload: AnyPayload, text: str, html: str | None) -> None:
        self.payload, self.text, self.html = payload, text, html

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": self.text}
        if self.html:
            bundle["text/html"] = self.html
        return bundle | {MIME: json.loads(self.payload.model_dump_json())}


# --- for notebooks ----------------------------------------------------------------------------------------------


def judge(claim_id: str, frame: pd.DataFrame, *, run: Run | Sequence[Run], settings: Settings) -> None:
    """Judge a claim of a paper on our results and show the table *paper against ours*.

    Args:
        claim_id: id in the register, for example ``MPT-13``.
        frame: tidy results: condition columns, ``seed``, ``metric``, ``value``, often ``round``.
        run: the run, or runs, that the frame comes from.
        settings: the settings of the runs; they name the profile.

    Raises:
        InputError: unknown claim, a frame that does not hold what the claim's rules need, or seeds in the frame
            that no run has.
    """
    entry = lookup(claim_id)
    runs = [run] if isinstance(run, Run) else list(run)
    result = verdicts.judge(entry, frame, _origin(runs, settings))
    if foreign := set(frame["seed"]) - _seeds(runs):
        raise InputError(f"results have seed {min(foreign)}, and no run has it: they come from other runs")
    display(_Shown(VerdictPayload(verdict=result), verdict_text(result), verdict_html(result)))


def finding(name: str, text: str, *, run: Run | Sequence[Run], settings: Settings) -> None:
    """Show a finding of our own, which other pages of the book quote.

    Args:
        name: of the finding, for the page that quotes it.
        text: the finding in words; computed from the results of ``run``, never typed.
        run: the run, or runs, that it comes from.
        settings: the settings of the runs; they name the profile.
    """
    origin = _origin([run] if isinstance(run, Run) else list(run), settings)
    line = f"{text} ({origin}.)"
    payload = FindingPayload(name=name, text=text, provenance=origin)
    display(_Shown(payload, line, f'<p class="fedlib-finding">{escape(line)}</p>'))


def provenance(*runs: Run, settings: Settings) -> None:
    """Show where the numbers of a page come from: data and their kind, profile, seeds, time, key, versions.

    Args:
        runs: the runs that the page uses.
        settings: the settings of the runs; they name the profile.
    """
    infos = _infos(runs, settings)
    display(_Shown(RunPayload(runs=infos), runs_text(infos), runs_html(infos)))


def finish() -> None:
    """Mark that a notebook reached its end; the runner accepts a page only with this mark."""
    display(_Shown(FinishedPayload(), "End of page.", None))


# --- for the book -----------------------------------------------------------------------------------------------


def collect(executed: Path) -> list[Collected]:
    """Return the payloads of all executed notebooks below a folder, pages sorted, outputs in order.

    Raises:
        InputError: a payload that does not have the expected form, or a verdict on a page that the register
            does not name for that claim; the message names page and cell.
    """
    found = []
    for path in sorted(executed.rglob("*.ipynb")):
        if any(part.startswith(".") for part in path.relative_to(executed).parts):
            continue
        found += of_page(path, path.relative_to(executed).with_suffix("").as_posix())
    return found


def of_page(path: Path, page: str) -> list[Collected]:
    """Return the payloads of one executed notebook, outputs in order.

    Args:
        path: the notebook.
        page: its name, ``part/name``.

    Raises:
        InputError: see ``collect``.
    """
    node = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    return [
        Collected(page=page, payload=_payload(output["data"][MIME], page, number))
        for number, cell in enumerate(node.cells)
        for output in cell.get("outputs", [])
        if MIME in output.get("data", {})
    ]


def verdicts_of(collected: Sequence[Collected]) -> list[Verdict]:
    """Return the verdicts among collected payloads, in order; pass them to ``verdict.standings``."""
    return [item.payload.verdict for item in collected if isinstance(item.payload, VerdictPayload)]


def findings_of(collected: Sequence[Collected], name: str) -> list[tuple[str, FindingPayload]]:
    """Return page and payload of the findings of a name, in order."""
    return [
        (item.page, item.payload)
        for item in collected
        if isinstance(item.payload, FindingPayload) and item.payload.name == name
    ]


def _payload(raw: Any, page: str, number: int) -> AnyPayload:
    try:
        payload = ADAPTER.validate_json(json.dumps(raw))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        raise InputError(
            f"{page}, cell {number}: result of unknown form at {place}: {first['msg']}"
        ) from None
    if isinstance(payload, VerdictPayload):
        entry = lookup(payload.verdict.id)
        if entry.notebook != page:
            raise InputError(f"{page}, cell {number}: {entry.id} belongs to the page {entry.notebook}")
    return payload


# --- where results come from ------------------------------------------------------------------------------------


def _origin(runs: Sequence[Run], settings: Settings) -> Provenance:
    if not runs:
        raise InputError("no run is given; results without a run have no origin")
    names = dict.fromkeys(name for run in runs if (name := _dataset(run)) is not None)
    data = tuple(DataUse(name=name, kind=card(name).kind) for name in names)
    changed = dict.fromkeys([*_changed(settings), *_differing(runs, settings)])
    return Provenance(data=data, profile=settings.profile, changed=tuple(changed))


def _seeds(runs: Sequence[Run]) -> set[int]:
    return {int(seed) for run in runs for seed in run.metrics["seed"].unique()}


def _dataset(run: Run) -> str | None:
    """Return the run's data set; None for a run on random numbers, which says so."""
    if "dataset" not in run.config:
        raise InputError(f"run {run.name} names no data set; its configuration needs 'dataset'")
    return None if run.config["dataset"] is None else str(run.config["dataset"])


def _changed(settings: Settings) -> tuple[str, ...]:
    """Names of the settings that differ from the profile's; where it runs and more seeds change nothing."""
    paper = next(name for name in profiles.papers() if profiles.model_for(name) is type(settings))
    planned = profiles.load(paper, settings.profile)
    return tuple(
        name
        for name in type(settings).model_fields
        if name not in _WHERE_IT_RUNS
        and getattr(settings, name) != getattr(planned, name)
        and not (name == "seeds" and settings.seeds > planned.seeds)
    )


def _differing(runs: Sequence[Run], settings: Settings) -> list[str]:
    """Names of the settings that a run was not computed with: sweeps do so on purpose, and are no longer the
    profile. What the profile itself plans for a task, a backbone or a data set is no difference."""
    plans = [plan.model_dump(mode="json", exclude={*_WHERE_IT_RUNS}) for plan in settings.variants()]
    found: dict[str, None] = {}
    for run in runs:
        if _dataset(run) is None:  # not of these settings at all
            continue
        differences = [
            [name for name in plan if name in run.config and run.config[name] != plan[name]] for plan in plans
        ]
        nearest = min(differences, key=len)
        found |= dict.fromkeys(nearest)
    return list(found)


def _infos(runs: Sequence[Run], settings: Settings) -> tuple[RunInfo, ...]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.name, []).append(run)
    if not groups:
        raise InputError("provenance needs at least one run")
    return tuple(_info(name, group, settings) for name, group in groups.items())


def _info(name: str, runs: Sequence[Run], settings: Settings) -> RunInfo:
    origin = _origin(runs, settings)
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for package in _PACKAGES:
            found.setdefault(package, {})[run.environment.get(package, "unknown")] = None
    return RunInfo(
        name=name,
        keys=tuple(run.key[:10] for run in runs),
        data=origin.data,
        profile=origin.profile,
        changed=origin.changed,
        seeds=tuple(sorted(_seeds(runs))),
        seconds=float(sum(run.seconds for run in runs)),
        versions={package: " and ".join(each) for package, each in found.items()},
    )
