"""The generated fragments: complete, deterministic, and showing plain words as they are."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pandas as pd
import pytest
from markdown_it import MarkdownIt
from sphinx_external_toc.parsing import parse_toc_yaml

from fedlib.book import coverage, markdown, pages, reference
from fedlib.experiments import settings
from fedlib.report import register
from fedlib.report.payloads import Collected, FindingPayload
from fedlib.report.recorded import Record, Recorded
from fedlib.report.verdict import DataUse, Provenance, Verdict, judge_sides


@pytest.fixture(scope="session")
def items() -> list[Verdict]:
    """Every verdict of a build that has executed nothing."""
    return coverage.verdicts([])


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()[2:]]


def test_a_second_run_writes_nothing(repo: Path, tmp_path: Path) -> None:
    made = pages.generate(repo / "book", tmp_path / "_executed", tmp_path / "_generated")
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in made}
    assert pages.generate(repo / "book", tmp_path / "_executed", tmp_path / "_generated") == made
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in made} == before


def test_how_to_run_names_every_optional_package(repo: Path) -> None:
    project = tomllib.loads((repo / "pyproject.toml").read_text("utf-8"))["project"]
    text = (repo / "book" / "how-to-run.md").read_text("utf-8")
    for extra in set(project["optional-dependencies"]) - {"dev"}:
        assert f"pip install -e '.[{extra}]'" in text, extra


def test_fragments_that_are_no_longer_made_are_removed(repo: Path, tmp_path: Path) -> None:
    old = tmp_path / "_generated" / "old.md"
    old.parent.mkdir()
    old.write_text("old")
    pages.generate(repo / "book", tmp_path / "_executed", tmp_path / "_generated")
    assert not old.exists()


def test_pages_include_only_fragments_that_are_made_and_all_of_them(repo: Path, tmp_path: Path) -> None:
    made = {
        path.name for path in pages.generate(repo / "book", tmp_path / "_executed", tmp_path / "_generated")
    }
    sources = [
        path for path in (repo / "book").rglob("*.md") if path.relative_to(repo / "book").parts[0][0] != "_"
    ]
    included = {
        line.rsplit("/", 1)[1]
        for path in sources
        for line in path.read_text("utf-8").splitlines()
        if line.startswith("```{include}") and "_generated/" in line
    }
    assert included == made


def test_every_page_in_the_table_of_contents_has_a_source_and_no_page_is_left_out(repo: Path) -> None:
    listed = list(parse_toc_yaml(repo / "book" / "_toc.yml"))
    assert len(listed) == len(set(listed))
    written = {name for name in listed if not name.startswith("_executed/")}
    sources = {
        path.relative_to(repo / "book").with_suffix("").as_posix()
        for path in (repo / "book").rglob("*.md")
        if not path.relative_to(repo / "book").parts[0].startswith("_")
    }
    assert written == sources
    notebooks = {
        f"_executed/{p.relative_to(repo / 'notebooks').with_suffix('')}"
        for p in (repo / "notebooks").rglob("*.ipynb")
    }
    assert {name for name in listed if name.startswith("_executed/")} == notebooks


def test_every_setting_of_every_profile_is_listed_with_its_origin() -> None:
    listed = [row for line in reference.settings().split(":::") for row in rows(line) if len(row) == 4]
    assert not [row for row in listed if not row[3]]
    for paper in settings.papers():
        names = {name for name in settings.model_for(paper).model_fields if name != "profile"}
        assert names <= {row[0].strip("`") for row in listed}


def test_every_claim_table_and_figure_has_a_row(items: list[Verdict]) -> None:
    for paper in register.PAPERS:
        own = [item for item in items if item.entry.paper == paper]
        shown = coverage.claims(own, []) + coverage.tables_and_figures(own, [])
        assert not [i.entry.id for i in own if i.entry.kind != "cell" and f"**{i.entry.id}**" not in shown]


def test_the_front_page_counts_every_claim_once(items: list[Verdict]) -> None:
    columns = list(zip(*[map(int, row[1:]) for row in rows(coverage.summary(items))], strict=True))
    for paper, (*counts, total) in zip(register.PAPERS, columns, strict=True):
        assert total == sum(counts) == len(register.select(paper, ["claim"]))


def test_the_front_page_quotes_the_finding_on_few_samples_and_types_none(repo: Path) -> None:
    assert "_generated/few-samples.md" in (repo / "book" / "index.md").read_text(encoding="utf-8")
    assert "has not been run" in coverage.quoted([], "few-samples")
    origin = Provenance(data=(DataUse(name="digits", kind="real"),), profile="quick")
    payload = FindingPayload(name="few-samples", text="MPT loses in 1 of 2.", provenance=origin)
    found = [Collected(page="mpt/when-does-tracking-help", payload=payload)]
    words = coverage.quoted(found, "few-samples")
    assert words.startswith("MPT loses in 1 of 2. *digits (real), profile quick*")
    assert "</_executed/mpt/when-does-tracking-help>" in words
    smoke = origin.model_copy(update={"profile": "smoke"})
    found = [Collected(page="mpt/x", payload=payload.model_copy(update={"provenance": smoke}))]
    assert "has not been run" in coverage.quoted(found, "few-samples")


def test_nothing_counts_as_attempted_without_a_run_or_an_audit(items: list[Verdict]) -> None:
    judged = [item for item in items if item.word not in (register.NOT_ATTEMPTED, register.CONTRADICTED)]
    assert not judged
    assert not [
        item.entry.id for item in items if item.word == register.CONTRADICTED and not item.entry.audit
    ]


def test_recorded_verdicts_stand_below_those_of_this_build(items: list[Verdict]) -> None:
    item = next(item for item in items if item.id == "MPT-10")
    rule = item.entry.parts[0]
    groups = [*rule.over, *(rule.against_each if rule.against is not None else ())]
    tables = [
        pd.DataFrame(
            [dict.fromkeys(groups, "x") | {"seed": s, "ours": 0.5 + s / 100, "theirs": 0.9} for s in range(3)]
        )
        for _ in item.entry.parts
    ]
    origin = Provenance(data=(DataUse(name="digits", kind="real"),), profile="overnight")
    record = Record(
        claim=item.id, page=item.entry.notebook, provenance=origin, parameters={}, runs=(),
        machine="Linux, 2 cores", date="2026-01-02", settings={},
    )  # fmt: skip
    found = Recorded(record=record, verdict=judge_sides(item.entry, tables, origin))
    shown = rows(coverage.claims([item], [], {item.id: found}))
    assert len(shown) == 2
    assert shown[1][0] == "MPT-10, recorded"
    assert "2026-01-02" in shown[1][2]
    assert "1 claim in profile `overnight`" in coverage.recorded_line([found])
    assert "none yet" in coverage.recorded_line([])


@pytest.mark.parametrize(
    "words",
    [
        "a | b",
        "x*y*z",
        "_private_ and snake_case",
        "a < b > c",
        "cost $5 to $6",
        "[not a link]",
        "back`tick",
        "{role}`x`",
    ],
)
def test_plain_words_are_shown_as_they_are(words: str) -> None:
    html = (
        MarkdownIt("commonmark")
        .enable("table")
        .render(markdown.pipe_table(["head"], [[markdown.text(words)]]))
    )
    cell = html.split("<td>")[1].split("</td>")[0]
    assert cell.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") == words


def test_a_row_with_a_missing_cell_is_refused() -> None:
    with pytest.raises(ValueError, match="2 cells"):
        markdown.pipe_table(["a", "b"], [["only one"]])


def test_every_command_is_listed_with_its_options() -> None:
    words = reference.commands()
    for command in ("fedlib run", "fedlib book", "fedlib data", "fedlib doctor", "fedlib runs why"):
        assert f"| `{command}` |" in words
    assert "`--dry-run`" in words


def test_every_public_module_is_on_an_api_page(repo: Path) -> None:
    shown = {
        module
        for names in reference.LAYERS.values()
        for name in names
        for module in reference.public_modules(name)
    }
    package = repo / "fedlib"
    expected = set()
    for path in package.rglob("*.py"):
        parts = path.relative_to(package).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts and parts[0] != "cli" and not any(part.startswith("_") for part in parts):
            expected.add(".".join(("fedlib", *parts)))
    assert shown == expected
