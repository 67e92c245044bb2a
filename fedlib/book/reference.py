"""Fragments that describe the build and the library: pages, settings, data, modules, commands."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import typer
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

import fedlib
from fedlib.book.key import Manifest
from fedlib.book.markdown import captioned, definition, pipe_table, text
from fedlib.data import cards
from fedlib.data.imageset import Card
from fedlib.experiments.settings import PROFILES, papers
from fedlib.report.payloads import Collected, RunInfo, RunPayload

LAYERS: dict[str, tuple[str, ...]] = {
    "data": ("data", "paths", "seeds", "errors", "files", "workers"),
    "models-and-features": ("models", "features"),
    "federation-and-methods": ("federation", "methods"),
    "runs-and-experiments": ("runs", "experiments"),
    "report-and-book": ("report", "book"),
}
"""Packages and modules of fedlib on each API page; the command line has its own table."""


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
        parts.append(captioned(table, f"Settings of `{paper}`.", f"tab-settings-{paper}"))
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
        *definition("Source", card.source),
        *definition("Licence", card.licence),
        *definition("Cite", card.citation),
        *definition("Notes", " ".join(card.notes)),
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
            *definition("Cite", cards[0].citation),
            captioned(table, f"The sets of {source} that can be loaded.", f"tab-data-{name}"),
        ]
    )


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
