"""The built site: it reads without a network, its links and images are whole, and it shows what was computed.

The book's real sources are built once, through the real build, with tiny stand-ins for the executed notebooks.
"""

from __future__ import annotations

import itertools
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from fedlib.book import build, key
from fedlib.book.layout import Layout
from fedlib.files import sha256
from fedlib.report import register
from fedlib.report.measure import Group, estimate
from fedlib.report.payloads import MIME, FinishedPayload, RunInfo, RunPayload, VerdictPayload
from fedlib.report.verdict import DataUse, Part, Provenance, Verdict

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
ASSETS = {"script": "src", "link": "href", "img": "src", "source": "src", "iframe": "src", "video": "src"}
GENERATED_TABLES = {
    "index.html": ["tab-summary"],
    "synthesis/what-reproduced.html": ["tab-what-reproduced", "tab-not-attempted"],
    "mpt/overview.html": ["tab-mpt-claims", "tab-mpt-items"],
    "fedcka/overview.html": ["tab-fedcka-claims", "tab-fedcka-items"],
    "vcl/overview.html": ["tab-vcl-claims", "tab-vcl-items"],
    "reference/status.html": ["tab-status", "tab-versions"],
    "reference/settings.html": ["tab-settings-foundations", "tab-settings-mpt"],
}


@dataclass(frozen=True)
class Site:
    """A built site, parsed."""

    root: Path
    pages: dict[str, BeautifulSoup]


def payloads(page: str) -> list[VerdictPayload | RunPayload | FinishedPayload]:
    """Return results as a page would carry them: a claim judged where the register has one, a run, the end."""
    data = (DataUse(name="digits", kind="real"),)
    ours, theirs = estimate([0.9, 0.8, 0.7]), estimate([0.4, 0.4, 0.4])
    effect = estimate([0.5, 0.4, 0.3])
    group = Group(name="", against="", ours=ours, theirs=theirs, effect=effect, holds=True)
    part = Part(
        says="a | b",
        holds=True,
        sentence="",
        ours=ours,
        theirs=theirs,
        effect=effect,
        gap=None,
        within=None,
        groups=(group,),
    )
    judged = [
        Verdict(
            id=entry.id,
            word=register.TREND,
            sentence="Holds for *all* seeds.",
            parts=(part,),
            provenance=Provenance(data=data, profile="quick"),
        )
        for entry in register.select(kinds=["claim"], notebook=page)[:1]
    ]
    run = RunInfo(
        name="mpt.study",
        keys=("0123456789",),
        data=data,
        profile="quick",
        changed=(),
        seeds=(0, 1, 2),
        seconds=41.0,
        versions={},
    )
    return [
        *(VerdictPayload(verdict=verdict) for verdict in judged),
        RunPayload(runs=(run,)),
        FinishedPayload(),
    ]


def executed_notebook(page: str) -> nbformat.NotebookNode:
    """Return a small notebook as the runner would leave it: parameters, a figure, a table, the marker."""
    figure = new_output("display_data", data={"image/png": PIXEL})
    table = new_output(
        "display_data", data={"text/html": "<table><tr><th>F1</th></tr><tr><td>0.5</td></tr></table>"}
    )
    results = [
        new_output(
            "display_data",
            data={MIME: payload.model_dump(mode="json"), "text/plain": f"Result {payload.kind}."},
        )
        for payload in payloads(page)
    ]
    alt = {"mystnb": {"image": {"alt": "A single grey pixel."}}}
    parameters = "seeds = 3  # int, at least 1: number of repetitions"
    node = new_notebook(
        cells=[
            new_markdown_cell(
                f"# {page}\n\nAn equation, $\\sum_k n_k$.\n\n```{{note}}\nOur voice.\n```", id="title"
            ),
            new_code_cell(parameters, id="parameters", metadata={"tags": ["parameters"]}),
            new_code_cell("seeds = 4", id="injected", metadata={"tags": ["injected-parameters"]}),
            new_code_cell("figure", id="figure", metadata=alt, outputs=[figure], execution_count=1),
            new_code_cell("table", id="table", outputs=[table], execution_count=2),
            new_code_cell("judge, provenance", id="results", outputs=results[:-1], execution_count=3),
            new_code_cell("report.finish()", id="finish", outputs=results[-1:], execution_count=4),
        ],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    inputs = key.Inputs(notebook="", parameters={"seeds": 4}, modules={}, lock="")
    node.metadata[key.METADATA] = key.Manifest(
        page=page,
        profile="smoke",
        parameters={"seeds": 4},
        given={"seeds": 4},
        seconds=1.5,
        peak_memory_mib=321,
        versions={"python": "3.x", "torch": "2.x"},
        inputs=inputs,
        key=inputs.key,
        content=key.content(node),
    ).model_dump()
    return node


def make_book(repo: Path, root: Path) -> Layout:
    """Return a copy of the book's sources below ``root`` with a stand-in for each executed notebook."""
    shutil.copytree(
        repo / "book", root / "book", ignore=shutil.ignore_patterns("_build", "_executed", "_generated")
    )
    layout = Layout(root)
    for page in build.executed_pages(layout):
        path = layout.executed_copy(page)
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(executed_notebook(page), path)
    return layout


def build_book(repo: Path, root: Path) -> Layout:
    """Build a copy of the book below ``root`` as a fork would publish it."""
    layout = make_book(repo, root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BOOK_REPOSITORY_URL", "https://github.com/owner/companion")
        patch.setenv("BOOK_REPOSITORY_BRANCH", "main")
        build.build(layout)
    return layout


@pytest.fixture(scope="session")
def site(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Site:
    layout = build_book(repo, tmp_path_factory.mktemp("book"))
    # Below _static lie templates of the theme, which are no pages.
    files = [path for path in sorted(layout.html.rglob("*.html")) if "_static" not in path.parts]
    return Site(
        layout.html,
        {
            path.relative_to(layout.html).as_posix(): BeautifulSoup(path.read_bytes(), "html.parser")
            for path in files
        },
    )


def test_nothing_is_loaded_from_another_host(site: Site) -> None:
    remote = [
        f"{name}: {tag.name} {tag[attribute]}"
        for name, page in site.pages.items()
        for element, attribute in ASSETS.items()
        for tag in page.find_all(element)
        if tag.get(attribute)
        and (urlsplit(tag[attribute]).scheme in ("http", "https") or tag[attribute][:2] == "//")
        and "canonical" not in tag.get("rel", [])
    ]
    assert not remote


def test_styles_load_nothing_from_another_host(site: Site) -> None:
    styles = {path: path.read_text("utf-8", "replace") for path in site.root.rglob("*.css")}
    styles |= {
        site.root / name: " ".join(str(tag) for tag in page.find_all("style"))
        for name, page in site.pages.items()
    }
    remote = [
        f"{path.name}: {found}"
        for path, text in styles.items()
        for found in re.findall(r"(?:@import|url\()\s*['\"]?(?:https?:)?//[^)'\";]+", text)
    ]
    assert styles
    assert not remote


def test_inline_scripts_name_no_remote_script(site: Site) -> None:
    bodies = [
        tag.get_text()
        for page in site.pages.values()
        for tag in page.find_all("script")
        if not tag.get("src")
    ]
    assert not [
        body[:120] for body in bodies if re.search(r"https?://\S+\.js|unpkg|jsdelivr|cdnjs|thebe", body)
    ]


def test_every_local_link_and_file_exists(site: Site) -> None:
    ids = {name: {tag["id"] for tag in page.find_all(id=True)} for name, page in site.pages.items()}
    missing = []
    for name, page in site.pages.items():
        here = (site.root / name).parent
        for tag in page.find_all(["a", "link", "script", "img", "source"]):
            target = tag.get("href") or tag.get("src")
            if not target or urlsplit(target).scheme or target.startswith("//"):
                continue
            path, fragment = unquote(urlsplit(target).path), unquote(urlsplit(target).fragment)
            file = (here / path).resolve() if path else site.root / name
            if file.is_dir():
                file /= "index.html"
            if not file.is_file():
                missing.append(f"{name}: {target}")
            elif fragment and file.suffix == ".html":
                known = ids.get(
                    file.relative_to(site.root.resolve() if path else site.root).as_posix(), set()
                )
                if fragment not in known:
                    missing.append(f"{name}: {target} (no such place)")
    assert not sorted(set(missing))


def test_every_image_says_what_it_shows(site: Site) -> None:
    images = [(name, tag) for name, page in site.pages.items() for tag in page.find_all("img")]
    assert images
    assert not [
        f"{name}: {tag.get('src', '')[:60]}" for name, tag in images if not tag.get("alt", "").strip()
    ]


def test_no_path_of_this_machine_is_published(site: Site, repo: Path) -> None:
    places = [
        str(place) for place in (repo, site.root, Path.home(), Path(sys.prefix)) if len(place.parts) > 2
    ]
    kinds = {".html", ".js", ".txt", ".ipynb", ".md", ".css"}
    texts = {
        path: path.read_text("utf-8", "replace") for path in site.root.rglob("*") if path.suffix in kinds
    }
    assert not [
        f"{path.relative_to(site.root)}: {place}"
        for path, text in texts.items()
        for place in places
        if place in text
    ]


def test_search_has_an_index_of_the_pages(site: Site) -> None:
    index = (site.root / "searchindex.js").read_text("utf-8")
    assert index.startswith("Search.setIndex(")
    assert '"mpt/overview"' in index
    assert '"_executed/mpt/preliminary-drift-study"' in index


def test_formulas_are_drawn_by_one_local_script(site: Site) -> None:
    page = site.pages["mpt/overview.html"]
    sources = [tag["src"] for tag in page.find_all("script", src=True) if "mathjax" in tag["src"].lower()]
    assert len(sources) == 1
    script = site.root / "mpt" / urlsplit(sources[0]).path
    assert script.stat().st_size > 1_000_000
    # One file, not the whole distribution.
    assert [path.name for path in (site.root / "_static" / "mathjax").rglob("*") if path.is_file()] == [
        "tex-svg.js"
    ]


@pytest.mark.parametrize("page", GENERATED_TABLES)
def test_generated_tables_are_there_with_caption_and_anchor(site: Site, page: str) -> None:
    for anchor in GENERATED_TABLES[page]:
        place = site.pages[page].find(id=anchor)
        assert place is not None, anchor
        table = place if place.name == "table" else place.find("table")
        assert table.find("caption").get_text(strip=True)
        assert table.find("tbody").find("td").get_text(strip=True)


def test_every_claim_of_the_register_is_on_its_papers_page(site: Site) -> None:
    for paper in register.PAPERS:
        words = site.pages[f"{paper}/overview.html"].get_text()
        assert not [
            entry.id
            for entry in register.select(paper, ["claim", "table", "figure"])
            if entry.id not in words
        ]


def test_the_status_page_shows_what_each_page_took(site: Site) -> None:
    rows = site.pages["reference/status.html"].find(id="tab-status").find("tbody").find_all("tr")
    cells = {
        row.find("td").get_text(strip=True): [cell.get_text(strip=True) for cell in row.find_all("td")]
        for row in rows
    }
    assert cells["mpt/preliminary-drift-study"][1:] == ["smoke", "seeds=4", "3", "41", "2", "321"]


def test_a_judged_claim_is_shown_with_its_numbers_on_every_page_that_lists_it(site: Site) -> None:
    claim = register.select(kinds=["claim"], notebook="mpt/preliminary-drift-study")[0].id
    for name, anchor in (
        ("mpt/overview.html", "tab-mpt-claims"),
        ("synthesis/what-reproduced.html", "tab-what-reproduced"),
    ):
        rows = site.pages[name].find(id=anchor).find("tbody").find_all("tr")
        words = next(
            text
            for text in (row.get_text(" ", strip=True).replace("\u00a0", " ") for row in rows)
            if text.startswith(f"{claim} ")
        )
        assert "0.800 ± 0.100 (3 seeds) against 0.400 ± 0.000" in words
        assert "digits (real), profile quick" in words
        assert f"{register.TREND} : Holds for *all* seeds." in words
    summary = site.pages["index.html"].find(id="tab-summary").find("tbody").find_all("tr")
    counts = {
        row.find("td").get_text(strip=True): row.find_all("td")[1].get_text(strip=True) for row in summary
    }
    assert int(counts[register.TREND]) >= 1, "the first column of numbers is MPT's"


def test_the_end_marker_is_not_shown_but_other_results_are(site: Site) -> None:
    words = site.pages["_executed/mpt/preliminary-drift-study.html"].get_text()
    assert "Result run." in words
    assert "Result finished." not in words


def test_links_to_the_repository_lead_to_sources_never_to_build_products(site: Site) -> None:
    links = {
        name: {
            tag["href"]
            for tag in page.find_all("a", href=True)
            if "github.com/owner/companion" in tag["href"]
        }
        for name, page in site.pages.items()
    }
    files = {link for found in links.values() for link in found if re.search(r"/(edit|blob)/", link)}
    assert not [link for link in files if "_executed" in link or "_generated" in link]
    page = "_executed/mpt/preliminary-drift-study"
    source = "https://github.com/owner/companion/edit/main/notebooks/mpt/preliminary-drift-study.ipynb"
    assert source in links[f"{page}.html"]


def test_the_executed_notebook_can_be_downloaded(site: Site) -> None:
    page = site.pages["_executed/mpt/preliminary-drift-study.html"]
    links = [tag["href"] for tag in page.find_all("a", href=True)]
    downloads = [link for link in links if link.endswith(".ipynb") and not urlsplit(link).scheme]
    assert downloads
    assert (site.root / "_executed/mpt" / downloads[0]).is_file()


def test_papermills_two_cells_can_be_told_apart(site: Site) -> None:
    page = site.pages["_executed/mpt/preliminary-drift-study.html"]
    style = (site.root / "_static" / "book.css").read_text("utf-8")
    for tag in ("tag_parameters", "tag_injected-parameters"):
        assert page.find("div", class_=tag) is not None
        assert f"div.cell.{tag}::before" in style


def test_every_page_has_one_title_and_no_skipped_heading(site: Site) -> None:
    wrong = []
    for name, page in site.pages.items():
        article = page.find("article")
        if article is None or name.startswith("_modules"):
            continue
        levels = [int(tag.name[1]) for tag in article.find_all(re.compile(r"^h[1-6]$"))]
        if levels.count(1) != 1 or any(b > a + 1 for a, b in itertools.pairwise(levels)):
            wrong.append(f"{name}: {levels}")
    assert not wrong


@pytest.mark.slow
def test_two_builds_of_the_same_sources_are_the_same_bytes(site: Site, repo: Path, tmp_path: Path) -> None:
    again = build_book(repo, tmp_path).html

    def content(root: Path) -> dict[str, str]:
        files = [path for path in root.rglob("*") if path.is_file()]
        return {path.relative_to(root).as_posix(): sha256(path) for path in files}

    first, second = content(site.root), content(again)
    assert first.keys() == second.keys()
    assert not [name for name in first if first[name] != second[name]]
