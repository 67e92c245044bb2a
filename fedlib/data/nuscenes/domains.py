"""The five client domains of FedCKA (Verhoog, Ünal and Caesar, 2026, Section IV-A): city x light x weather.

A scene's domain follows from the location of its log and the words of its description. ``scene_domains.csv`` lists
all 850 scenes with annotations; it was put together from public scene lists (RoboBEV's domain splits, geographical
splits by Adam, CenterFusion++) that agree with each other, and from the official split of nuscenes-devkit. The
list derives from nuScenes metadata (Caesar et al., 2020; CC BY-NC-SA 4.0 with the nuScenes terms of use).
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from fedlib.errors import InputError

SPLITS = ("train", "val")
WARM = "warm"  # scenes of a generated root for a common start; in no client's data


@dataclass(frozen=True)
class Domain:
    """One client's conditions.

    Attributes:
        letter: A to E.
        city: boston or singapore.
        night: whether descriptions say so.
        rain: whether descriptions say so; "after rain" counts.
        train: scenes in the official training split.
        val: scenes in the official validation split; the weights of all averages over domains.
    """

    letter: str
    city: str
    night: bool
    rain: bool
    train: int
    val: int

    @property
    def title(self) -> str:
        """Name for captions, for example "Singapore, night, rain"."""
        light, weather = "night" if self.night else "day", "rain" if self.rain else "dry"
        return f"{self.city.capitalize()}, {light}, {weather}"


DOMAINS: dict[str, Domain] = {
    domain.letter: domain
    for domain in (
        Domain("A", "boston", False, False, 265, 53),
        Domain("B", "boston", False, True, 125, 24),
        Domain("C", "singapore", False, False, 226, 58),
        Domain("D", "singapore", True, False, 71, 12),
        Domain("E", "singapore", True, True, 13, 3),
    )
}


def domain_of(location: str, description: str) -> str:
    """Return the letter of the domain of a scene.

    Args:
        location: ``location`` of the scene's log, for example ``singapore-onenorth``.
        description: ``description`` of the scene.

    Raises:
        InputError: no domain has this combination.

    >>> domain_of("singapore-hollandvillage", "Night, after rain, parked cars")
    'E'
    """
    words = description.lower()
    wanted = location.split("-")[0].lower(), "night" in words, "rain" in words
    for letter, domain in DOMAINS.items():
        if wanted == (domain.city, domain.night, domain.rain):
            return letter
    allowed = "; ".join(domain.title for domain in DOMAINS.values())
    raise InputError(f"location {location!r} with description {description!r} is none of: {allowed}")


@cache
def published() -> Mapping[str, tuple[str, str]]:
    """Return split (train or val) and domain of each of the 850 annotated scenes of nuScenes, by name."""
    text = resources.files("fedlib.data.nuscenes").joinpath("scene_domains.csv").read_text("utf-8")
    return {row["scene"]: (row["split"], row["domain"]) for row in csv.DictReader(text.splitlines())}


def check_published(found: Mapping[str, str], *, strict_counts: bool = False) -> None:
    """Compare derived domains with the published list.

    Args:
        found: domain of each scene by name; names that are not in the list are ignored.
        strict_counts: also demand that all 850 scenes are there.

    Raises:
        InputError: a scene has another domain than published, or the counts differ from those of the paper.
    """
    known = published()
    for name, domain in found.items():
        if name in known and known[name][1] != domain:
            raise InputError(
                f"{name} is derived as domain {domain}; published: {known[name][1]}. Tables were changed?"
            )
    if strict_counts:
        counts = Counter((found[name], split) for name, (split, _) in known.items() if name in found)
        for letter, conditions in DOMAINS.items():
            for split, expected in (("train", conditions.train), ("val", conditions.val)):
                if counts[letter, split] != expected:
                    raise InputError(
                        f"domain {letter} has {counts[letter, split]} {split} scenes; published: {expected}"
                    )
