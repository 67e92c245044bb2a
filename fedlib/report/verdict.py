"""Verdicts: what our runs say about an entry of the register. Computed here, typed nowhere.

A rule's direction holds where the mean paired difference over seeds points that way and its two-sided 95 %
t-interval excludes the rule's margin. A claim about several others is not settled by a part of them,
unless one of these refutes it. A printed value is reproduced only on the paper's own data, with profile ``paper``
unchanged, within the rule's tolerance. Everything that leaves this module is plain Python.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from fedlib.errors import InputError
from fedlib.experiments.settings import PROFILES
from fedlib.report import audit
from fedlib.report.measure import Estimate, Group, Outcome, compare
from fedlib.report.register import (
    CONTRADICTED,
    NOT_ATTEMPTED,
    NOT_REPRODUCED,
    REPRODUCED,
    TREND,
    Entry,
    Frozen,
    Rule,
    Word,
    load,
    lookup,
)
from fedlib.report.sides import Unmeasurable, check_frame, sides


class DataUse(Frozen):
    """A data set behind a result: its ``fedlib.data`` name and its kind, ``real`` or ``surrogate``."""

    name: str
    kind: str


class Provenance(Frozen):
    """Where a result comes from.

    Attributes:
        data: the data sets.
        profile: name of the profile.
        changed: settings that differ from the profile's.
    """

    data: tuple[DataUse, ...]
    profile: str
    changed: tuple[str, ...] = ()

    def __str__(self) -> str:
        data = ", ".join(f"{item.name} ({item.kind})" for item in self.data)
        changed = f" with other {', '.join(self.changed)}" if self.changed else ""
        return f"{data}, profile {self.profile}{changed}"


class Part(Frozen):
    """What came out of one comparison of an entry.

    Attributes:
        says: the comparison in words.
        holds: whether its direction holds; None where it only compares a value.
        sentence: the outcome in words.
        ours: our side, averaged over groups within each seed.
        theirs: the other side in the weakest group (of those that fail, where the direction does not hold);
            None where there is none.
        effect: the difference in that group.
        gap: our number minus the paper's; None where the paper gives none.
        within: whether the gap is within the tolerance; None where the paper gives no number.
        groups: the comparison in every group.
        not_compared: what the rule compares with and the results lack, in words; empty where they have all.
        table: both sides by seed and group (see ``sides.sides``) as CSV: what the outcome was computed from.
    """

    says: str
    holds: bool | None
    sentence: str
    ours: Estimate
    theirs: Estimate | None
    effect: Estimate
    gap: float | None
    within: bool | None
    groups: tuple[Group, ...]
    not_compared: str = ""
    table: str = ""

    @property
    def numbers(self) -> str:
        """Our number with its spread, and what it is compared with."""
        own = f"{plus_minus(self.ours)} ({_seeds(self.ours.n)})"
        return f"{own} against {plus_minus(self.theirs)}" if self.theirs else own

    @property
    def distance(self) -> str:
        """The gap to the paper's number, or the difference that the claim is about."""
        if self.gap is not None:
            return f"{number(self.gap, self.ours.mean, sign=True)} to the paper"
        if self.holds is None:
            return "–"
        return f"difference {interval(self.effect)}" if self.theirs else interval(self.effect)


class Verdict(Frozen):
    """What our runs say about an entry.

    Attributes:
        id: the entry.
        word: one of ``register.WORDS``.
        sentence: why, in words.
        parts: outcome of each comparison; empty where nothing was measured.
        provenance: where the numbers come from; None where nothing was measured.
    """

    id: str
    word: Word
    sentence: str
    parts: tuple[Part, ...] = ()
    provenance: Provenance | None = None

    @property
    def entry(self) -> Entry:
        """The entry of the register."""
        return lookup(self.id)

    @property
    def ours(self) -> str:
        """Our numbers in one line; a dash where there are none."""
        return "; ".join(part.numbers for part in self.parts) or "–"

    @property
    def gap(self) -> str:
        """Gaps and differences in one line; a dash where there are none."""
        return "; ".join(part.distance for part in self.parts) or "–"


def judge(entry: Entry, frame: pd.DataFrame, provenance: Provenance) -> Verdict:
    """Return the verdict of ``frame`` on an entry.

    Args:
        entry: entry of the register with at least one comparison rule.
        frame: tidy results: condition columns, ``seed``, ``metric``, ``value``, often ``round``.
        provenance: data and profile behind the frame.

    Raises:
        InputError: the entry has no rule, or the frame does not hold what its rules need.
    """
    _check(provenance)
    if not entry.parts:
        raise InputError(f"{entry.id} has no comparison rule; {_how_judged(entry)}")
    check_frame(frame)
    try:
        tables = [sides(rule, frame) for rule in entry.parts]
    except Unmeasurable as reason:
        return _settle(entry, NOT_ATTEMPTED, str(reason), (), provenance)
    return judge_sides(entry, tables, provenance)


def judge_sides(entry: Entry, tables: Sequence[pd.DataFrame], provenance: Provenance) -> Verdict:
    """Return the verdict on an entry from the two sides of each of its rules.

    Args:
        entry: entry of the register.
        tables: from ``sides.sides``, one for each rule in order.
        provenance: data and profile behind them.

    Raises:
        InputError: another number of tables than of rules.
    """
    _check(provenance)
    if len(tables) != len(entry.parts):
        raise InputError(
            f"{entry.id} has {len(entry.parts)} comparison rules, and results hold {len(tables)}"
        )
    try:
        parts = tuple(_part(rule, table) for rule, table in zip(entry.parts, tables, strict=True))
    except Unmeasurable as reason:
        return _settle(entry, NOT_ATTEMPTED, str(reason), (), provenance)
    word, sentence = _decide(entry, parts, provenance)
    return _settle(entry, word, sentence, parts, provenance)


def without_run(entry: Entry) -> Verdict:
    """Return the verdict on an entry that no executed page has judged: contradicted, or not attempted."""
    return _settle(entry, NOT_ATTEMPTED, entry.reason, (), None)


def standings(verdicts: Iterable[Verdict]) -> dict[str, Verdict]:
    """Return one verdict per entry of the register.

    Of several verdicts on an entry the one nearest to the paper's setting counts: the paper's data first, then
    real before surrogate data, then a profile as it is before one with other settings, then the larger profile,
    then the first on its page. A verdict that was attempted
    comes before one that was not. Tables and figures stand as far as the claims that they show.
    """
    best: dict[str, Verdict] = {}
    for verdict in verdicts:
        if verdict.id not in best or _nearness(verdict) > _nearness(best[verdict.id]):
            best[verdict.id] = verdict
    found = {entry.id: best.get(entry.id) or without_run(entry) for entry in load().entries}
    for entry in load().entries:
        if entry.rests_on and found[entry.id].word == NOT_ATTEMPTED:
            found[entry.id] = _resting(entry, [found[name] for name in entry.rests_on])
    return found


def _check(provenance: Provenance) -> None:
    if provenance.profile not in PROFILES:
        raise InputError(f"profile is {provenance.profile!r}; allowed: {', '.join(PROFILES)}")
    if not provenance.data:
        raise InputError("a verdict needs to know its data; the provenance names none")
    for item in provenance.data:
        if item.kind not in ("real", "surrogate"):
            raise InputError(f"kind of {item.name} is {item.kind!r}; allowed: real, surrogate")


def _at_paper_scale(entry: Entry, provenance: Provenance) -> bool:
    """Whether printed numbers can be compared: the paper's real data, and profile paper as it is."""
    return (
        provenance.profile == "paper"
        and not provenance.changed
        and all(item.kind == "real" and item.name in entry.data for item in provenance.data)
    )


def _decide(entry: Entry, parts: Sequence[Part], provenance: Provenance) -> tuple[Word, str]:
    directed = [part for part in parts if part.holds is not None]
    failed = [part for part in directed if not part.holds]
    missed = [part for part in parts if part.within is False]
    full = _at_paper_scale(entry, provenance)
    if provenance.profile == "smoke":
        return NOT_ATTEMPTED, "profile smoke only shows that the page runs"
    if failed:
        return NOT_REPRODUCED, " ".join(part.sentence for part in failed)
    if partly := [part for part in directed if part.not_compared]:
        return NOT_ATTEMPTED, "Only in part: " + " ".join(part.sentence for part in partly)
    if full:
        if missed:
            return NOT_REPRODUCED, " ".join(part.sentence for part in missed)
        return REPRODUCED, " ".join(part.sentence for part in parts)
    if not directed:
        return (
            NOT_ATTEMPTED,
            f"a printed number can only be checked on {', '.join(entry.data)} with profile paper",
        )
    return TREND, " ".join(part.sentence for part in directed)


def _settle(
    entry: Entry, word: Word, sentence: str, parts: tuple[Part, ...], provenance: Provenance | None
) -> Verdict:
    finding = audit.run(entry)
    if finding and finding.contradicted:
        word, sentence = CONTRADICTED, finding.text
    return Verdict(id=entry.id, word=word, sentence=sentence, parts=parts, provenance=provenance)


def _resting(entry: Entry, on: Sequence[Verdict]) -> Verdict:
    words = [verdict.word for verdict in on]
    names = ", ".join(verdict.id for verdict in on)
    if NOT_ATTEMPTED in words:
        missing = ", ".join(verdict.id for verdict in on if verdict.word == NOT_ATTEMPTED)
        return Verdict(id=entry.id, word=NOT_ATTEMPTED, sentence=f"no verdict yet on {missing}")
    order: tuple[Word, ...] = (CONTRADICTED, NOT_REPRODUCED, TREND, REPRODUCED)
    return Verdict(id=entry.id, word=next(word for word in order if word in words), sentence=f"as {names}")


def _nearness(verdict: Verdict) -> tuple[bool, bool, bool, bool, int]:
    origin = verdict.provenance
    if origin is None:
        return (False, False, False, False, -1)
    return (
        verdict.word != NOT_ATTEMPTED,
        all(item.name in verdict.entry.data for item in origin.data),
        all(item.kind == "real" for item in origin.data),
        not origin.changed,
        PROFILES.index(origin.profile),
    )


def _how_judged(entry: Entry) -> str:
    if entry.rests_on:
        return f"it stands as {', '.join(entry.rests_on)} do"
    return "it is checked from the printed tables" if entry.audit else entry.reason


# --- words ------------------------------------------------------------------------------------------------------


def _part(rule: Rule, table: pd.DataFrame) -> Part:
    outcome = compare(rule, table)
    groups = outcome.groups
    least = min(groups, key=lambda group: _strength(rule, group))
    holds = None if rule.direction is None else _share_holding(rule, groups) >= rule.share - 1e-9
    compared = least.effect.mean if rule.against is not None else least.ours.mean
    # A larger difference with a larger spread can be the one that fails.
    failing = [group for group in groups if holds is False and not group.holds]
    weakest = min(failing, key=lambda group: _strength(rule, group), default=least)
    gap = None if rule.value is None else compared - rule.value
    # Binary fractions make a gap of exactly the tolerance look larger than it is.
    within = None if gap is None or rule.tolerance is None else abs(gap) <= rule.tolerance + 1e-9
    return Part(
        says=rule.says,
        holds=holds,
        sentence=_sentence(rule, outcome, weakest, holds, gap, within),
        ours=outcome.ours,
        theirs=weakest.theirs,
        effect=weakest.effect,
        gap=gap,
        within=within,
        groups=tuple(groups),
        not_compared=outcome.not_compared,
        table=table.to_csv(index=False, lineterminator="\n"),
    )


def _strength(rule: Rule, group: Group) -> float:
    """How far the effect lies on the claimed side; the group with the least decides."""
    if rule.direction == "<":
        return -group.effect.mean
    return -abs(group.effect.mean) if rule.direction == "~" else group.effect.mean


def _share_holding(rule: Rule, groups: Sequence[Group]) -> float:
    # A group of ``over`` holds if ours beats each of the others in it.
    held: dict[str, bool] = {}
    for group in groups:
        held[group.name] = held.get(group.name, True) and bool(group.holds)
    return sum(held.values()) / len(held)


def _sentence(
    rule: Rule,
    outcome: Outcome,
    weakest: Group,
    holds: bool | None,
    gap: float | None,
    within: bool | None,
) -> str:
    says = rule.says[0].upper() + rule.says[1:]
    words, groups = [], outcome.groups
    if holds is not None:
        names = list(dict.fromkeys(group.name for group in groups))
        share = ""
        if len(names) > 1:
            holding = round(_share_holding(rule, groups) * len(names))
            it = "" if holds else ", it holds"
            share = f"{it} in {holding} of {len(names)} groups ({_judged(rule, groups)})"
        where = ", ".join(filter(None, (weakest.name, weakest.against)))
        least = f"; least in {where}" if where else ""
        why = "" if holds else _why_not(rule, weakest)
        words.append(f"{says}: {'yes' if holds else 'no'}{share}{least} ({_effect(rule, weakest)}{why}).")
    if gap is not None and rule.value is not None:
        subject = says if holds is None else "The number"
        found, printed = number(rule.value + gap, rule.value), number(rule.value, rule.value)
        verb = "within" if within else "outside"
        words.append(
            f"{subject}: {found} against the paper's {printed}, {verb} the tolerance of {rule.tolerance:g}."
        )
    if outcome.left_out:
        words.append(f"Left out, with too few seeds: {outcome.left_out}.")
    if outcome.not_compared:
        words.append(f"Not compared, since the results lack it: {outcome.not_compared}.")
    return " ".join(words)


def _judged(rule: Rule, groups: Sequence[Group]) -> str:
    """Name the groups that were judged: a page may compute fewer of them than a claim is about."""
    keys = dict.fromkeys(group.key for group in groups)
    values = [list(dict.fromkeys(column)) for column in zip(*keys)]
    if math.prod(map(len, values)) == len(keys):  # every value with every other
        return "; ".join(f"{column} {', '.join(found)}" for column, found in zip(rule.over, values))
    return "; ".join(dict.fromkeys(group.name for group in groups))


def _effect(rule: Rule, group: Group) -> str:
    if rule.against is not None:
        return f"{'relative ' if rule.relative else ''}difference {interval(group.effect)}"
    if rule.reference:
        own = number(group.ours.mean, group.ours.mean)
        return f"{own} beside {rule.reference:g}, difference {interval(group.effect)}"
    changes = rule.minus is not None or rule.minus_rounds is not None
    kind = "slope" if rule.statistic == "slope" else "change" if changes else "value"
    return f"{kind} {interval(group.effect)}"


def _why_not(rule: Rule, group: Group) -> str:
    effect = group.effect
    if rule.deterministic or effect.low is None or effect.high is None:
        return ""
    if rule.direction == "~":
        return f", which is not within ±{rule.margin:g}"
    bound = rule.margin if rule.direction == ">" else 0.0 - rule.margin
    if effect.low <= bound <= effect.high:
        return f", which includes {bound:g}: undecided with {_seeds(effect.n)}"
    return ", the opposite" if bound == 0 else f", which is on the wrong side of {bound:g}"


def interval(estimate: Estimate) -> str:
    """Return a signed mean with its 95 % interval: ``−0.310 [−0.402, −0.218]``."""
    mean = number(estimate.mean, estimate.mean, sign=True)
    if estimate.low is None or estimate.high is None:
        return mean
    scale = max(abs(estimate.low), abs(estimate.high), abs(estimate.mean))
    low, high = (number(end, scale, sign=True) for end in (estimate.low, estimate.high))
    return f"{number(estimate.mean, scale, sign=True)} [{low}, {high}]"


def plus_minus(estimate: Estimate) -> str:
    """Return a mean with its standard deviation: ``0.903 ± 0.012``."""
    scale = max(abs(estimate.mean), estimate.sd or 0.0)
    mean = number(estimate.mean, scale)
    return mean if estimate.sd is None else f"{mean} ± {number(estimate.sd, scale)}"


def number(value: float, scale: float, *, sign: bool = False) -> str:
    """Return ``value`` with decimals that suit numbers of the size of ``scale``.

    >>> number(0.9031, 0.9), number(-3.2, 3.2, sign=True), number(14000.0, 14000.0)
    ('0.903', '−3.20', '14,000')
    """
    size = abs(scale)
    steps = ((1000, 0), (100, 1), (1, 2), (0.01, 3))
    decimals = next((count for least, count in steps if size >= least), 5 if size > 0 else 3)
    rounded = round(value, decimals) + 0.0  # no minus zero
    text = f"{rounded:+,.{decimals}f}" if sign else f"{rounded:,.{decimals}f}"
    return text.replace("-", "−")


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"
