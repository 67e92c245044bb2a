"""Make the generated pages of the book: all that the register, the runs or the library know.

Each fragment is a piece of Markdown that a page of ``book/`` includes. Fragments are functions of the executed
notebooks and of the library's sources, so that a page cannot show what no run has computed, and carry neither
times nor machine paths of the build.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import typer
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

import fedlib
from fedlib.book import key
from fedlib.book.build import executed_pages
from fedlib.book.key import Manifest
from fedlib.book.layout import Layout
from fedlib.data import cards
from fedlib.data.imageset import Card
from fedlib.experiments.settings import PROFILES, papers
from fedlib.files import write_atomic
from fedlib.report import evidence, recorded, register
from fedlib.report.payloads import Collected, RunInfo, RunPayload
from fedlib.report.recorded import Recorded
from fedlib.report.register import Entry
from fedlib.report.verdict import Verdict, standings

LAYERS: dict[str, tuple[str, ...]] = {
    "data": ("data", "paths", "seeds", "errors", "files", "workers"),
    "models-and-features": ("models", "features"),
    "federation-and-methods": ("federation", "methods"),
    "runs-and-experiments": ("runs", "experiments"),
    "report-and-book": ("report", "book"),
}
"""Packages and modules of fedlib on each API page; the command line has its own table."""

_JUDGED = [word for word in register.WORDS if word != register.NOT_ATTEMPTED]


def generate(book_dir: Path, executed_dir: Path, generated_dir: Path) -> list[Path]:
    """Write all fragments into ``generated_dir`` and remove those that are no longer made.

    Args:
        book_dir: sources of the book; its table of contents says which executed pages the book has.
        executed_dir: executed notebooks.
        generated_dir: where the fragments go; a file whose text did not change is left alone.

    Returns:
        The fragments, sorted.
    """
    parts = fragments(book_dir, executed_dir)
    for name, words in parts.items():
        path = generated_dir / f"{name}.md"
        content = words.rstrip() + "\n"
        if not path.is_file() or path.read_text(encoding="utf-8") != content:
            write_atomic(path, content)
    made = {generated_dir / f"{name}.md" for name in parts}
    for old in set(generated_dir.glob("*.md")) - made:
        old.unlink()
    return sorted(made)


def fragments(book_dir: Path, executed_dir: Path) -> dict[str, str]:
    """Return every fragment's text by its name."""
    layout = Layout(book_dir.parent)
    pages = executed_pages(layout)
    collected = evidence.collect(executed_dir)
    items = verdicts(collected)
    kept = recorded.by_claim(recorded.load(layout.recorded))
    manifests = [found for page in pages if (found := key.manifest(executed_dir / f"{page}.ipynb"))]
    parts = {
        "coverage": coverage_line(items),
        "summary": summary(items),
        "few-samples": quoted(collected, "few-samples"),
        "what-reproduced": claims(
            [item for item in items if _is_judged(item) or item.id in kept], pages, kept
        ),
        "recorded": recorded_results(list(kept.values())),
        "recorded-summary": recorded_line(list(kept.values())),
        "not-attempted": not_attempted(items),
        "status-summary": status_summary(manifests),
        "status": status(manifests, collected),
        "versions": versions(manifests),
        "settings": settings(),
        "data-cards": data_cards(),
        "commands": commands(),
    }
    for paper in register.PAPERS:
        own = [item for item in items if item.entry.paper == paper]
        parts[f"coverage-{paper}"] = coverage_line(own)
        parts[f"claims-{paper}"] = claims(own, pages, kept)
        parts[f"items-{paper}"] = tables_and_figures(own, pages)
    return parts | {f"api-{layer}": api(layer) for layer in LAYERS}


# --- verdicts ---------------------------------------------------------------------------------------------------


def verdicts(collected: Sequence[Collected]) -> list[Verdict]:
    """Return the verdict on every entry of the register, in its order, as the executed notebooks give it."""
    return list(standings(evidence.verdicts_of(collected)).values())


def coverage_line(items: Sequence[Verdict]) -> str:
    """Return one sentence: how many claims have a verdict, and which."""
    words = Counter(item.word for item in items if item.entry.kind == "claim")
    judged = words.total() - words[register.NOT_ATTEMPTED]
    found = ", ".join(f"{words[word]} {word}" for word in _JUDGED if words[word])
    line = f"**{judged} of {words.total()} claims** have a verdict{': ' + found if found else ''}."
    cells = [item for item in items if item.entry.kind == "cell"]
    if cells:
        line += f" Of the printed table cells, {sum(map(_is_judged, cells)):,} of {len(cells):,}."
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
            judged = f"{sum(map(_is_judged, cells))} of {len(cells)}" if cells else "–"
            rows.append([_statement(item.entry), text(item.entry.where), judged, _verdict(item, pages)])
    return pipe_table(["item", "where", "cells judged", "verdict"], rows)


def not_attempted(items: Sequence[Verdict]) -> str:
    """Return how many claims and table cells have no verdict, by paper and reason."""
    missing = [item for item in items if not _is_judged(item)]
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


def _is_judged(item: Verdict) -> bool:
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


# --- status -----------------------------------------------------------------------------------------------------


def status_summary(manifests: Sequence[Manifest]) -> str:
    """Return one sentence about the size of this build."""
    profiles = sorted({manifest.profile for manifest in manifests if manifest.profile}, key=PROFILES.index)
    minutes = sum(manifest.seconds for manifest in manifests) / 60
    memory = max((manifest.peak_memory_mib for manifest in manifests), default=0)
    return (
        f"{len(manifests)} executed pages, profile {' and '.join(f'`{name}`' for name in profiles) or 'none'}. "
        f"Together they took {minutes:.1f} minutes of wall time, one after the other, and at most {memory:,} MiB "
        "in one process."
    )


def status(manifests: Sequence[Manifest], collected: Sequence[Collected]) -> str:
    """Return the table of the executed pages: size, seeds, time and memory of the run that made each of them."""
    runs: dict[str, list[RunInfo]] = {}
    for found in collected:
        if isinstance(found.payload, RunPayload):
            runs.setdefault(found.page, []).extend(found.payload.runs)
    rows = [
        [
            f"{{doc}}`{item.page} </_executed/{item.page}>`",
            f"`{item.profile}`" if item.profile else "–",
            _changes(item) or "–",
            _seeds(runs.get(item.page, [])),
            f"{sum(run.seconds for run in runs.get(item.page, [])):,.0f}",
            f"{item.seconds:,.0f}",
            f"{item.peak_memory_mib:,}",
        ]
        for item in manifests
    ]
    head = ["page", "profile", "changed parameters", "seeds", "runs, s", "page, s", "memory, MiB"]
    return pipe_table(head, rows or [["no page was executed", *[""] * 6]], numbers=head[3:])


def _seeds(runs: Sequence[RunInfo]) -> str:
    counts = sorted({len(run.seeds) for run in runs})
    return " to ".join(str(count) for count in dict.fromkeys([counts[0], counts[-1]])) if counts else "–"


def _changes(item: Manifest) -> str:
    given = sorted(item.given.items())
    return ", ".join(f"`{name}={_plain(value)}`" for name, value in given if name != "profile")


def versions(manifests: Sequence[Manifest]) -> str:
    """Return the table of package versions; two in a row mean that pages were made with different ones."""
    names = list(dict.fromkeys(name for item in manifests for name in item.versions))
    rows = [
        [text(name), ", ".join(sorted({item.versions[name] for item in manifests if name in item.versions}))]
        for name in names
    ]
    return pipe_table(["package", "version"], rows or [["no page was executed", ""]])


# --- settings ---------------------------------------------------------------------------------------------------


def settings() -> str:
    """Return one table per paper: every value of every profile with the comment that says where it comes from."""
    parts = []
    for paper in papers():
        source = resources.files("fedlib.experiments") / "profiles" / f"{paper}.yaml"
        document = YAML().load(source.read_text(encoding="utf-8"))
        rows = [
            (f"`{name}`", "all" if group == "common" else f"`{group}`", f"`{_plain(value)}`", origin)
            for group in ("common", *PROFILES)
            for name, value, origin in _settings_of(document[group])
        ]
        order = {name: position for position, name in enumerate(dict.fromkeys(row[0] for row in rows))}
        rows.sort(key=lambda row: order[row[0]])
        table = pipe_table(("setting", "profile", "value", "origin"), rows)
        parts.append(_captioned(table, f"Settings of `{paper}`.", f"tab-settings-{paper}"))
    return "\n\n".join(parts)


def _settings_of(group: CommentedMap) -> Iterable[tuple[str, Any, str]]:
    above = ""
    for name, value in group.items():
        beside, lines, above = "", above, ""
        for token in filter(None, group.ca.items.get(name) or []):
            if isinstance(token, list):  # lines of their own above the name, after a value of several lines
                lines += _comment("".join(item.value for item in token))
            else:  # beside the value; what follows on later lines belongs to the next one
                first, _, rest = token.value.partition("\n")
                beside, above = _comment(first), _comment(rest)
        yield name, value, text(beside or lines)


def _comment(lines: str) -> str:
    return " ".join(line.strip().lstrip("# ") for line in lines.splitlines()).strip()


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value)
    return str(value)


# --- data cards -------------------------------------------------------------------------------------------------


def data_cards() -> str:
    """Return one section per data set, and one table for a family of sets."""
    return "\n\n".join(
        _card(family[0]) if family[0].name == name else _family(name, family)
        for name, family in cards().items()
    )


def _card(card: Card) -> str:
    lines = [
        f"## {text(card.title)}",
        "",
        f"`{card.name}` · **{card.kind}**",
        "",
        *_definition("Source", card.source),
        *_definition("Licence", card.licence),
        *_definition("Cite", card.citation),
        *_definition("Notes", " ".join(card.notes)),
    ]
    return "\n".join(lines).rstrip()


def _family(name: str, cards: Sequence[Card]) -> str:
    rows = [(f"`{card.name}`", card.title, card.licence, " ".join(card.notes)) for card in cards]
    table = pipe_table(("name", "set", "licence", "notes"), rows)
    kinds = ", ".join(sorted({card.kind for card in cards}))
    source = cards[0].source.split(",")[0]
    return "\n".join(
        [
            f"## {text(source)}",
            "",
            f"`{name}:<name>` · **{kinds}**",
            "",
            *_definition("Cite", cards[0].citation),
            _captioned(table, f"The sets of {source} that can be loaded.", f"tab-data-{name}"),
        ]
    )


def _definition(term: str, words: str) -> list[str]:
    return [term, f": {text(words)}", ""] if words else []


# --- the library ------------------------------------------------------------------------------------------------


def api(layer: str) -> str:
    """Return a section with the documented members of each public module of a layer."""
    modules = [module for name in LAYERS[layer] for module in public_modules(name)]
    return "\n\n".join(
        "\n".join(
            [
                f"## `{module}`",
                "",
                "```{eval-rst}",
                f".. automodule:: {module}",
                "   :members:",
                "   :ignore-module-all:",
                "   :no-value:",
                "   :exclude-members: model_config",
                "```",
            ]
        )
        for module in modules
    )


def public_modules(name: str) -> list[str]:
    """Return the dotted names of ``fedlib.<name>`` and the public modules inside it, packages first, sorted."""
    base = Path(fedlib.__file__).parent
    if (base / f"{name}.py").is_file():
        return [f"fedlib.{name}"]
    found = []
    for path in sorted((base / name).rglob("*.py")):
        parts = path.relative_to(base).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if not any(part.startswith("_") for part in parts):
            found.append(".".join(("fedlib", *parts)))
    return sorted(found)


def commands() -> str:
    """Return the table of the command line: each command, what it does and its options."""
    # The page describes the layer above this one, as the API pages do with all layers; nothing depends on it.
    app = importlib.import_module("fedlib.cli").app
    rows = []
    for name, command in _commands_of(typer.main.get_command(app), "fedlib"):
        usage = [p.name.upper() if p.param_type_name == "argument" else p.opts[0] for p in command.params]
        options = "; ".join(
            f"`{word}` {text((p.help or '').rstrip('.'))}"
            for word, p in zip(usage, command.params, strict=True)
        )
        rows.append([f"`{name}`", text((command.help or "").split("\n\n")[0]), options or "–"])
    return pipe_table(["command", "what it does", "arguments and options"], rows)


def _commands_of(command: Any, name: str) -> list[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        return [(name, command)]
    return [
        found for word, part in command.commands.items() for found in _commands_of(part, f"{name} {word}")
    ]


# --- Markdown ---------------------------------------------------------------------------------------------------


def text(words: str) -> str:
    """Return plain words as Markdown that shows exactly them; a mean and its spread stay on one line."""
    return re.sub(
        r"([\\`*{\[\]<|$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", " ".join(words.split())
    ).replace(" ± ", "\u00a0±\u00a0")


def pipe_table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Iterable[str] = ()) -> str:
    """Return a Markdown table. Cells are Markdown; columns named in ``numbers`` are set to the right."""
    if any(len(row) != len(head) for row in rows):
        raise ValueError(f"each row needs {len(head)} cells: {', '.join(head)}")
    right = set(numbers)
    lines = [
        _row(head),
        _row(["---:" if name in right else "---" for name in head]),
        *(_row(row) for row in rows),
    ]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", " ".join(cell.split())) for cell in cells) + " |"


def _captioned(table: str, caption: str, name: str) -> str:
    return f":::{{table}} {caption}\n:name: {name}\n\n{table}\n:::"
