"""How verdicts and runs look on a page: HTML tables, and the same as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fedlib.report import verdict as verdicts
from fedlib.report.payloads import RunInfo
from fedlib.report.register import lookup
from fedlib.report.verdict import Part, Verdict


def verdict_text(verdict: Verdict) -> str:
    """Return a verdict as lines of text."""
    lines = [f"{verdict.id}: {verdict.word}", verdict.sentence]
    lines += [f"  {part.says}: {part.numbers}; {part.distance}" for part in verdict.parts]
    return "\n".join(lines)


def verdict_html(verdict: Verdict) -> str:
    """Return the table *paper against ours*."""
    entry = verdict.entry
    caption = f"{entry.id} ({entry.where}), on {verdict.provenance}."
    head = ("the paper says", "paper", "ours: mean ± sd", "gap", "verdict")
    outcome = f"{verdict.word}. {verdict.sentence}"
    if len(verdict.parts) == 1:  # claim and comparison fit one row
        (part,) = verdict.parts
        rows = [_row([entry.statement, entry.paper_value, part.numbers, part.distance, outcome], strong=4)]
    else:
        rows = [_row([entry.statement, entry.paper_value, "–", "–", outcome], strong=4)]
        rows += [
            _row([part.says, _printed(part, entry.id), part.numbers, part.distance, _outcome(part)])
            for part in verdict.parts
        ]
    return _table(caption, head, rows)


def _printed(part: Part, claim_id: str) -> str:
    rule = next(rule for rule in lookup(claim_id).parts if rule.says == part.says)
    return "–" if rule.value is None else verdicts.number(rule.value, rule.value)


def _outcome(part: Part) -> str:
    words = [] if part.holds is None else ["holds" if part.holds else "does not hold"]
    if part.within is not None:
        words.append("within the tolerance" if part.within else "outside the tolerance")
    return ", ".join(words)


def runs_text(infos: Sequence[RunInfo]) -> str:
    """Return runs as lines of text."""
    return "\n".join("; ".join(_cells(info)) for info in infos)


def runs_html(infos: Sequence[RunInfo]) -> str:
    """Return the table of runs."""
    head = ("run", "data", "profile", "seeds", "seconds", "key", "versions")
    return _table("Where the numbers of this page come from.", head, [_row(_cells(info)) for info in infos])


def _cells(info: RunInfo) -> list[str]:
    changed = f", other {', '.join(info.changed)}" if info.changed else ""
    more = f" and {len(info.keys) - 1} more" if len(info.keys) > 1 else ""
    return [
        info.name,
        ", ".join(f"{item.name} ({item.kind})" for item in info.data) or "none: random numbers",
        f"{info.profile}{changed}",
        ", ".join(map(str, info.seeds)),
        f"{info.seconds:.1f}",
        f"{info.keys[0]}{more}",
        ", ".join(f"{name} {version}" for name, version in info.versions.items()),
    ]


def _table(caption: str, head: Sequence[str], rows: Sequence[str]) -> str:
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = [
        '<table class="fedlib-evidence">',
        f"<caption>{escape(caption)}</caption>",
        f"<thead><tr>{columns}</tr></thead>",
        "<tbody>",
        *rows,
        "</tbody>",
        "</table>",
    ]
    return "\n".join(lines)


def _row(cells: Sequence[str], strong: int | None = None) -> str:
    first = f'<th scope="row">{escape(cells[0])}</th>'
    rest = (
        f"<td>{'<strong>' if i == strong else ''}{escape(cell)}{'</strong>' if i == strong else ''}</td>"
        for i, cell in enumerate(cells[1:], start=1)
    )
    return f"<tr>{first}{''.join(rest)}</tr>"
