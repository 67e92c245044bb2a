"""What an output of a notebook carries for the machine, beside what readers see."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from fedlib.report.register import Frozen
from fedlib.report.verdict import DataUse, Provenance, Verdict

MIME = "application/vnd.fedlib+json"


class RunInfo(Frozen):
    """The runs of one experiment in words.

    Attributes:
        name: dotted name of the experiment.
        keys: first ten hex digits of each run's key.
        data: data sets and their kind.
        profile: name of the profile.
        changed: names of the settings that differ from the profile's, or from the settings in a run.
        seeds: the seeds in the results.
        seconds: time that the runs took to compute, added up.
        versions: versions of the packages that computed them.
    """

    name: str
    keys: tuple[str, ...]
    data: tuple[DataUse, ...]
    profile: str
    changed: tuple[str, ...]
    seeds: tuple[int, ...]
    seconds: float
    versions: dict[str, str]


class VerdictPayload(Frozen):
    """The payload of ``judge``."""

    kind: Literal["verdict"] = "verdict"
    verdict: Verdict


class RunPayload(Frozen):
    """The payload of ``provenance``."""

    kind: Literal["run"] = "run"
    runs: tuple[RunInfo, ...]


class FindingPayload(Frozen):
    """The payload of ``finding``: a sentence of ours that other pages of the book quote.

    Attributes:
        name: of the finding.
        text: the finding in words, computed from results.
        provenance: where the results come from.
    """

    kind: Literal["finding"] = "finding"
    name: str
    text: str
    provenance: Provenance


class FinishedPayload(Frozen):
    """The payload of ``finish``: the last cell was reached."""

    kind: Literal["finished"] = "finished"


AnyPayload = VerdictPayload | RunPayload | FindingPayload | FinishedPayload
Payload = Annotated[AnyPayload, Field(discriminator="kind")]
ADAPTER: TypeAdapter[AnyPayload] = TypeAdapter(Payload)
"""Reads a payload back from JSON."""


class Collected(Frozen):
    """A payload and the page that showed it (``part/name``)."""

    page: str
    payload: Payload
