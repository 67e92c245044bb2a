"""Make the generated pages of the book: all that the register, the runs or the library know.

Each fragment is a piece of Markdown that a page of ``book/`` includes. Fragments are functions of the executed
notebooks and of the library's sources, so that a page cannot show what no run has computed, and carry neither
times nor machine paths of the build.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

import fedlib
from fedlib.book import key
from fedlib.book.build import executed_pages
from fedlib.book.key import Manifest
from fedlib.book.layout import Layout
from fedlib.data import catalogue
from fedlib.data.imageset import Card
from fedlib.experiments.settings import PROFILES, papers
from fedlib.files import write_atomic
from fedlib.report import register
from fedlib.report.register import Entry

LAYERS: dict[str, tuple[str, ...]] = {
    "data": ("data", "paths", "seeds", "errors", "files"),
    "models-and-features": ("models", "features"),
    "federation-and-methods": ("federation", "methods"),
    "runs-and-experiments": ("runs", "experiments"),
    "report-and-book": ("report", "book", "cli"),
}
"""Packages and modules of fedlib on each API page."""


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
    pages = executed_pages(Layout(book_dir.parent))
    items = shown(executed_dir)
    manifests = [found for page in pages if (found := key.manifest(executed_dir / f"{page}.ipynb"))]
    parts = {
        "coverage": coverage_line(items),
        "summary": summary(items),
        "what-reproduced": attempted(items, pages),
        "not-attempted": not_attempted(items),
        "status-summary": status_summary(manifests),
        "status": status(manifests),
        "versions": versions(manifests),
        "settings": settings(),
        "data-cards": data_cards(),
    }
    for paper in register.PAPERS:
        own = [item for item in items if item.entry.paper == paper]
        parts[f"coverage-{paper}"] = coverage_line(own)
        parts[f"claims-{paper}"] = claims(own, pages)
        parts[f"items-{paper}"] = tables_and_figures(own, pages)
    return parts | {f"api-{layer}": api(layer) for layer in LAYERS}


# --- verdicts ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    """An entry of the register beside what the executed pages found out about it; texts are Markdown."""

    entry: Entry
    word: str
    ours: str
    gap: str
    reason: str
    page: str


def shown(executed: Path) -> list[Shown]:
    """Return every entry of the register with its verdict in the executed notebooks, in the register's order."""
    return [
        Shown(entry, register.NOT_ATTEMPTED, "–", "–", entry.reason, "") for entry in register.load().entries
    ]


def coverage_line(items: Sequence[Shown]) -> str:
    """Return one sentence: how many claims have a verdict, and which."""
    claims = [item for item in items if item.entry.kind == "claim"]
    cells = [item for item in items if item.entry.kind == "cell"]
    attempted = [item for item in claims if item.word != register.NOT_ATTEMPTED]
    counts = Counter(item.word for item in attempted)
    found = ", ".join(f"{counts[word]} {word}" for word in register.WORDS if counts[word])
    line = f"**{len(attempted)} of {len(claims)} claims** have a verdict{': ' + found if found else ''}."
    if cells:
        done = sum(item.word != register.NOT_ATTEMPTED for item in cells)
        line += f" Of {len(cells):,} printed table cells, {done:,} were compared."
    return line


def summary(items: Sequence[Shown]) -> str:
    """Return the table of the front page: how many claims of each paper have which verdict."""
    rows = []
    for paper in register.PAPERS:
        title = register.title(paper)
        words = Counter(i.word for i in items if i.entry.paper == paper and i.entry.kind == "claim")
        rows.append(
            [
                f"{{doc}}`{title.method} </{paper}/overview>`",
                str(words.total()),
                *(str(words[word]) for word in register.WORDS),
            ]
        )
    head = ["paper", "claims", *register.WORDS]
    return pipe_table(head, rows, numbers=head[1:])


def claims(items: Sequence[Shown], pages: Container[str]) -> str:
    """Return the table of a paper's claims: paper's value, ours, gap, verdict and reason."""
    rows = [
        [f"**{item.entry.id}** {_statement(item.entry)}", *_comparison(item, pages)]
        for item in items
        if item.entry.kind == "claim"
    ]
    return pipe_table(["claim", "paper", "ours", "gap", "verdict"], rows)


def tables_and_figures(items: Sequence[Shown], pages: Container[str]) -> str:
    """Return the table of a paper's tables and figures: what each shows and how much of it was judged."""
    words = {item.entry.id: item.word for item in items}
    rows = []
    for item in items:
        if item.entry.kind not in ("table", "figure"):
            continue
        parts = [*item.entry.rests_on, *(i for i in words if i.startswith(f"{item.entry.id}/"))]
        done = sum(words[part] != register.NOT_ATTEMPTED for part in parts)
        rows.append(
            [
                f"**{item.entry.id}** {_statement(item.entry)}",
                text(item.entry.where),
                f"{done} of {len(parts)}" if parts else "nothing to judge",
                _page_link(item.entry.notebook, pages) or "no page yet",
            ]
        )
    return pipe_table(["item", "where", "claims and cells judged", "page"], rows)


def attempted(items: Sequence[Shown], pages: Container[str]) -> str:
    """Return the table of everything with a verdict, over all papers; cells of tables are left to their pages."""
    rows = [
        [f"**{item.entry.id}** {_statement(item.entry)}", *_comparison(item, pages)]
        for item in items
        if item.word != register.NOT_ATTEMPTED and item.entry.kind == "claim"
    ]
    empty = [["none in this build", "", "", "", ""]]
    return pipe_table(["claim", "paper", "ours", "gap", "verdict"], rows or empty)


def not_attempted(items: Sequence[Shown]) -> str:
    """Return how many claims and cells have no verdict, by paper and reason."""
    missing = [i for i in items if i.word == register.NOT_ATTEMPTED and i.entry.kind in ("claim", "cell")]
    counts = Counter((item.entry.paper, item.reason) for item in missing)
    claims_of = Counter((item.entry.paper, item.reason) for item in missing if item.entry.kind == "claim")
    rows = [
        [
            register.title(paper).method,
            text(reason),
            str(claims_of[paper, reason]),
            str(count - claims_of[paper, reason]),
        ]
        for (paper, reason), count in counts.items()
    ]
    return pipe_table(["paper", "reason", "claims", "table cells"], rows, numbers=["claims", "table cells"])


def _statement(entry: Entry) -> str:
    note = f" *{text(entry.note)}*" if entry.note else ""
    return text(entry.statement) + note


def _comparison(item: Shown, pages: Container[str]) -> list[str]:
    link = _page_link(item.entry.notebook, pages)
    verdict = f"{item.word}{': ' + item.reason if item.reason else ''}" + (f" ({link})" if link else "")
    return [f"{text(item.entry.paper_value)} ({text(item.entry.where)})", item.ours, item.gap, verdict]


def _page_link(page: str, pages: Container[str]) -> str:
    return f"{{doc}}`page </_executed/{page}>`" if page in pages else ""


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


def status(manifests: Sequence[Manifest]) -> str:
    """Return the table of the executed pages: size, time and memory of the run that made each of them."""
    rows = [
        [
            f"{{doc}}`{item.page} </_executed/{item.page}>`",
            f"`{item.profile}`" if item.profile else "–",
            _changes(item) or "–",
            f"{item.seconds:,.0f}",
            f"{item.peak_memory_mib:,}",
        ]
        for item in manifests
    ]
    head = ["page", "profile", "changed parameters", "seconds", "memory, MiB"]
    return pipe_table(head, rows or [["no page was executed", "", "", "", ""]], numbers=head[3:])


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
    for name, value in group.items():
        tokens = group.ca.items.get(name) or []
        comment = next((token.value for token in tokens if token is not None), "")
        # What follows on later lines belongs to the next value.
        yield name, value, text(comment.split("\n")[0].lstrip("# "))


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value)
    return str(value)


# --- data cards -------------------------------------------------------------------------------------------------


def data_cards() -> str:
    """Return one section per data set, and one table for a family of sets."""
    parts = []
    for name, module_name in catalogue.MODULES.items():
        module = importlib.import_module(module_name)
        if hasattr(module, "cards"):
            parts.append(_family(name, module.cards()))
        else:
            parts.append(_card(module.CARD))
    return "\n\n".join(parts)


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


# --- Markdown ---------------------------------------------------------------------------------------------------


def text(words: str) -> str:
    """Return plain words as Markdown that shows exactly them (addresses become links)."""
    return re.sub(r"([\\`*{\[\]<|$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", " ".join(words.split()))


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
