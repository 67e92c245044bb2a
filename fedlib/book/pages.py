"""Make the generated pages of the book: all that the register, the runs or the library know.

Each fragment is a piece of Markdown that a page of ``book/`` includes. Fragments are functions of the executed
notebooks and of the library's sources, so that a page cannot show what no run has computed, and carry neither
times nor machine paths of the build.
"""

from __future__ import annotations

from pathlib import Path

from fedlib.book import coverage, key, reference
from fedlib.book.build import executed_pages
from fedlib.book.layout import Layout
from fedlib.files import write_atomic
from fedlib.report import evidence, recorded, register


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
    items = coverage.verdicts(collected)
    kept = recorded.by_claim(recorded.load(layout.recorded))
    manifests = [found for page in pages if (found := key.manifest(executed_dir / f"{page}.ipynb"))]
    parts = {
        "coverage": coverage.line(items),
        "summary": coverage.summary(items),
        "few-samples": coverage.quoted(collected, "few-samples"),
        "what-reproduced": coverage.claims(
            [item for item in items if coverage.is_judged(item) or item.id in kept], pages, kept
        ),
        "recorded": coverage.recorded_results(list(kept.values())),
        "recorded-summary": coverage.recorded_line(list(kept.values())),
        "not-attempted": coverage.not_attempted(items),
        "status-summary": reference.status_summary(manifests),
        "status": reference.status(manifests, collected),
        "versions": reference.versions(manifests),
        "settings": reference.settings(),
        "data-cards": reference.data_cards(),
        "commands": reference.commands(),
    }
    for paper in register.PAPERS:
        own = [item for item in items if item.entry.paper == paper]
        parts[f"coverage-{paper}"] = coverage.line(own)
        parts[f"claims-{paper}"] = coverage.claims(own, pages, kept)
        parts[f"items-{paper}"] = coverage.tables_and_figures(own, pages)
    return parts | {f"api-{layer}": reference.api(layer) for layer in reference.LAYERS}
