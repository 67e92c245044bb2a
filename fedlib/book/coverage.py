"""Fragments about claims: how many have a verdict, which, and what long runs recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence

from fedlib.book.markdown import pipe_table, text
from fedlib.experiments.settings import PROFILES
from fedlib.report import evidence, register
from fedlib.report.payloads import Collected
from fedlib.report.recorded import Recorded
from fedlib.report.register import Entry
from fedlib.report.verdict import Verdict, standings

_JUDGED = [word for word in register.WORDS if word != register.NOT_ATTEMPTED]


def verdicts(collected: Sequence[Collected]) -> list[Verdict]:
    """Return the verdict on every entry of the register, in its order, as the executed notebooks give it."""
    return list(standings(evidence.verdicts_of(collected)).values())


def line(items: Sequence[Verdict]) -> str:
    """Return one sentence: how many claims have a verdict, and which."""
    words = Counter(item.word for item in items if item.entry.kind == "claim")
    judged = words.total() - words[register.NOT_ATTEMPTED]
    found = ", ".join(f"{words[word]} {word}" for word in _JUDGED if words[word])
    line = f"**{judged} of {words.total()} claims** have a verdict{': ' + found if found else ''}."
    cells = [item for item in items if item.entry.kind == "cell"]
    if cells:
        line += f" Of the printed table cells, {sum(map(is_judged, cells)):,} of {len(cells):,}."
    return line


def summary(items: Sequence[Verdict]) -> str:
    """Return the table of the front page: how many claims of each paper have which verdict."""
    counts = [
        Counter(i.word for i in items if i.entry.paper == paper and i.entry.kind == "claim")
        for paper in register.PAPERS
    ]
    rows = [[word, *(str(count[word]) for count in counts)] for word in register.WORDS]
    rows.append(["all claims", *(str(count.total()) for count in counts)])
    papers = [f"{{doc}}`{register.title(paper).method} </{paper}/overview>`" for paper in register.PAPERS]
    return pipe_table(["verdict", *papers], rows, numbers=papers)


def claims(
    items: Sequence[Verdict], pages: Container[str], kept: Mapping[str, Recorded] | None = None
) -> str:
    """Return the table of claims: the paper's value, ours, the gap, the verdict and why; recorded ones below."""
    head = ["claim", "paper", "ours", "gap", "verdict"]
    rows = []
    for item in items:
        if item.entry.kind == "claim":
            rows.append(_claim_row(item, pages))
            if kept and item.id in kept:
                rows.append(_recorded_row(kept[item.id]))
    return pipe_table(head, rows or [["none in this build", "", "", "", ""]])


def quoted(collected: Sequence[Collected], name: str) -> str:
    """Return a finding that an executed page computed, with where it comes from and a link to the page."""
    found = evidence.findings_of(collected, name)
    if not found or found[0][1].provenance.profile == "smoke":
        return "The page that computes this has not been run at a size that shows it."
    page, payload = found[0]
    return f"{text(payload.text)} *{text(str(payload.provenance))}* {{doc}}`page </_executed/{page}>`"


def tables_and_figures(items: Sequence[Verdict], pages: Container[str]) -> str:
    """Return the table of a paper's tables and figures: what each shows, its verdict and its judged cells."""
    rows = []
    for item in items:
        if item.entry.kind in ("table", "figure"):
            cells = [other for other in items if other.id.startswith(f"{item.id}/")]
            judged = f"{sum(map(is_judged, cells))} of {len(cells)}" if cells else "–"
            rows.append([_statement(item.entry), text(item.entry.where), judged, _verdict(item, pages)])
    return pipe_table(["item", "where", "cells judged", "verdict"], rows)


def not_attempted(items: Sequence[Verdict]) -> str:
    """Return how many claims and table cells have no verdict, by paper and reason."""
    missing = [item for item in items if not is_judged(item)]
    counts = Counter((item.entry.paper, item.sentence, item.entry.kind) for item in missing)
    rows = [
        [
            register.title(paper).method,
            text(reason),
            str(counts[paper, reason, "claim"]),
            str(counts[paper, reason, "cell"]),
        ]
        for paper, reason in dict.fromkeys((item.entry.paper, item.sentence) for item in missing)
        if counts[paper, reason, "claim"] + counts[paper, reason, "cell"]
    ]
    head = ["paper", "reason", "claims", "table cells"]
    return pipe_table(head, rows or [["none", "", "", ""]], numbers=head[2:])


def is_judged(item: Verdict) -> bool:
    """Return whether any verdict was reached."""
    return item.word != register.NOT_ATTEMPTED


def _claim_row(item: Verdict, pages: Container[str]) -> list[str]:
    entry = item.entry
    ours, gap = _numbers(item)
    if item.provenance and item.parts:
        ours += f" *{text(str(item.provenance))}*"
    return [
        _statement(entry),
        f"{text(entry.paper_value)} *{text(entry.where)}*",
        ours,
        gap,
        _verdict(item, pages),
    ]


def _recorded_row(found: Recorded) -> list[str]:
    verdict = found.verdict
    ours, gap = _numbers(verdict)
    return [
        f"{text(verdict.id)}, recorded",
        "",
        f"{ours} *{text(str(found))}*",
        gap,
        f"**{verdict.word}**: {text(verdict.sentence)}",
    ]


def recorded_results(found: Sequence[Recorded]) -> str:
    """Return the table of recorded results: what long runs found, and where it comes from."""
    rows = [
        [
            f"**{text(item.verdict.id)}** {text(item.verdict.entry.statement)}",
            *_numbers(item.verdict),
            f"**{item.verdict.word}**: {text(item.verdict.sentence)}",
            text(str(item)),
        ]
        for item in found
    ]
    head = ["claim", "ours", "gap", "verdict", "origin"]
    return pipe_table(head, rows or [["none is recorded yet", "", "", "", ""]])


def recorded_line(found: Sequence[Recorded]) -> str:
    """Return one sentence for each profile about what is recorded, for the front page."""
    sentences = []
    for profile in PROFILES:
        own = [item for item in found if item.record.provenance.profile == profile]
        if own:
            words = Counter(item.verdict.word for item in own)
            counts = ", ".join(f"{words[word]} {word}" for word in register.WORDS if words[word])
            sentences.append(
                f"{len(own)} {'claims' if len(own) > 1 else 'claim'} in profile `{profile}`: {counts}."
            )
    what = "{doc}`Recorded results of long runs </reference/recorded>`, which this build did not compute: "
    return what + (" ".join(sentences) or "none yet.")


def _numbers(item: Verdict) -> tuple[str, str]:
    if len(item.parts) > 1:  # the verdict's sentence gives the numbers of each comparison
        held = sum(part.holds is not False and part.within is not False for part in item.parts)
        return f"{held} of {len(item.parts)} comparisons hold", "–"
    return text(item.ours), text(item.gap)


def _statement(entry: Entry) -> str:
    note = f" *{text(entry.note)}*" if entry.note else ""
    return f"**{entry.id}** {text(entry.statement)}{note}"


def _verdict(item: Verdict, pages: Container[str]) -> str:
    page = item.entry.notebook
    link = f" {{doc}}`page </_executed/{page}>`" if page in pages else ""
    return f"**{item.word}**{': ' + text(item.sentence) if item.sentence else ''}{link}"
