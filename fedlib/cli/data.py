"""``fedlib data``: which data sets are on this machine."""

from __future__ import annotations

import importlib


def data() -> None:
    """List the data sets: which are here, where, and what to do about the others."""
    from fedlib import paths
    from fedlib.cli import console
    from fedlib.data import available, find

    out = console.console()
    kinds = _kinds()
    rows = []
    for found in map(find, available()):
        where = found.where or ("part of a package" if found.present else "")
        rows.append(
            (found.name, kinds[found.name], "yes" if found.present else "no", where, found.what_to_do)
        )
    out.print(console.table(("name", "kind", "present", "where", "what to do"), rows))
    console.say(out, f"data folder: {paths.data_root()} (set FEDLIB_DATA to use another)")


def _kinds() -> dict[str, str]:
    from fedlib.data import catalogue

    kinds: dict[str, str] = {}
    for name in catalogue.MODULES.values():
        module = importlib.import_module(name)
        cards = module.cards() if hasattr(module, "cards") else [module.CARD]
        kinds |= {card.name: card.kind for card in cards}
    return kinds
