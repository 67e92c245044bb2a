"""What the book needs from Sphinx beyond its configuration.

* An image without alternative text is a warning, hence an error in our builds.
* A docstring may name an object by the package that re-exports it.
* The results that notebooks carry for machines are not shown; a cell that declares a figure must hold one.
* MathJax is one local file, copied from the installed package into the site.
* Pages of executed notebooks live in an ignored folder; their repository links lead to the sources instead.
* The inline scripts of sphinx-thebe, which is always on and which we do not use, are left out.
* The repository's address is no fact of the book: a fork names its own in ``BOOK_REPOSITORY_URL``.
"""

from __future__ import annotations

import json
import os
import pydoc
import shutil
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util import logging

logger = logging.getLogger(__name__)

PAYLOAD = "application/vnd.fedlib+json"
MATHJAX = "mathjax/tex-svg.js"  # below the site's _static folder, as mathjax_path in _config.yml names it
NO_IMAGE = "cell {} declares an image, but its outputs hold none"
NO_ALT = "image without alternative text: {}; say what a sighted reader sees"


class _Images(HTMLParser):
    """Collects the source of each ``<img>`` in raw HTML that has no alternative text."""

    def __init__(self) -> None:
        super().__init__()
        self.without_alt: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "img" and not (values.get("alt") or "").strip():
            self.without_alt.append((values.get("src") or "inline")[:80])


def check_alt(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Warn about each image that has no alternative text, or only its file name."""
    for image in doctree.findall(nodes.image):
        alt, uri = image.get("alt", "").strip(), image.get("uri", "")
        if not alt or alt in {uri, Path(uri).name, Path(uri).stem}:
            logger.warning(NO_ALT.format(uri), location=image, type="companion", subtype="alt")
    for raw in doctree.findall(nodes.raw):
        if "html" in raw.get("format", "").split():
            parser = _Images()
            parser.feed(raw.astext())
            for source in parser.without_alt:
                logger.warning(NO_ALT.format(source), location=raw, type="companion", subtype="alt")


def prepare_notebook(app: Sphinx, docname: str, source: list[str]) -> None:
    """Take the machine-readable results out of what is rendered, and check that declared figures are there.

    The results stay in the notebook that is offered for download. MyST-NB warns about each mime type that it
    cannot show, which is right for every other one.
    """
    if not app.env.doc2path(docname).endswith(".ipynb"):
        return
    notebook = json.loads(source[0])
    for number, cell in enumerate(notebook["cells"]):
        if "outputs" in cell:
            if _lacks_its_image(cell):
                logger.warning(NO_IMAGE.format(number), location=docname, type="companion", subtype="image")
            cell["outputs"] = [output for output in cell["outputs"] if not _is_marker(output)]
            for output in cell["outputs"]:
                output.get("data", {}).pop(PAYLOAD, None)
    source[0] = json.dumps(notebook)


def _is_marker(output: dict[str, Any]) -> bool:
    # What the last cell leaves for the runner; it says nothing to a reader.
    return output.get("data", {}).get(PAYLOAD, {}).get("kind") == "finished"


def _lacks_its_image(cell: dict[str, Any]) -> bool:
    # A cell with an alternative text is meant to show a figure; without one the page would silently miss it.
    declared = "image" in cell["metadata"].get("mystnb", {})
    return declared and not any(
        mime.startswith("image/") for out in cell["outputs"] for mime in out.get("data", {})
    )


def resolve_reexport(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.TextElement
) -> nodes.Element | None:
    """Find an object that a docstring calls by the package that re-exports it; type variables are no targets."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target.startswith("fedlib."):
        return None
    found = pydoc.locate(target)
    if isinstance(found, TypeVar):
        return contnode
    home = f"{getattr(found, '__module__', '')}.{getattr(found, '__qualname__', '')}"
    if home == target:
        return None
    domain = env.get_domain("py")
    return domain.resolve_xref(env, node["refdoc"], app.builder, node["reftype"], home, node, contnode)


def copy_mathjax(app: Sphinx) -> None:
    """Copy MathJax (one file of 2 MB; the package holds 24 MB) into the site."""
    if app.builder.format != "html":
        return
    package = find_spec("sphinx-mathjax-offline")
    if package is None or package.origin is None:
        raise ExtensionError("sphinx-mathjax-offline is not installed; run 'make setup'")
    target = Path(app.outdir) / "_static" / MATHJAX
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(package.origin).parent / "static" / MATHJAX, target)


def name_repository(app: Sphinx, config: Config) -> None:
    """Offer links to the repository only where its address is known."""
    url = os.environ.get("BOOK_REPOSITORY_URL", "").rstrip("/")
    config.html_theme_options |= {
        "repository_url": url,
        "repository_provider": "gitlab" if "gitlab" in url else "github",
        "repository_branch": os.environ.get("BOOK_REPOSITORY_BRANCH", "main"),
        "path_to_docs": "book",
        "use_repository_button": bool(url),
        "use_source_button": bool(url),
        "use_edit_page_button": bool(url),
        "use_issues_button": bool(url),
    }


def source_url(url: str) -> str | None:
    """Return the address of the file that a repository link means, or None if that file is generated.

    An executed notebook is a build product; its source lies in ``notebooks/``.
    """
    if "/book/_generated/" in url:
        return None
    return url.replace("/book/_executed/", "/notebooks/")


def mend_header_buttons(buttons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the buttons of a page's header with their repository links mended."""
    mended = []
    for button in buttons:
        if button["type"] == "group":
            group = mend_header_buttons(button["buttons"])
            if group:
                mended.append(button | {"buttons": group})
        elif button["type"] == "link":
            url = source_url(button["url"])
            if url:
                mended.append(button | {"url": url})
        else:
            mended.append(button)
    return mended


def _is_thebe(script: Any) -> bool:
    body = getattr(script, "attributes", {}).get("body") or ""
    return "thebe" in str(getattr(script, "filename", "") or "").lower() or "THEBE_JS_URL" in body


def finish_page(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Mend the links in the page's header and drop what the page does not use."""
    if "header_buttons" in context:
        context["header_buttons"] = mend_header_buttons(context["header_buttons"])
    context["script_files"] = [script for script in context["script_files"] if not _is_thebe(script)]


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("config-inited", name_repository)
    app.connect("builder-inited", copy_mathjax)
    app.connect("source-read", prepare_notebook)
    app.connect("missing-reference", resolve_reexport)
    app.connect("doctree-resolved", check_alt)
    app.connect("html-page-context", finish_page, priority=1000)  # after the theme has made its buttons
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
