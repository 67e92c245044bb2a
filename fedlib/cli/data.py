"""``fedlib data``: which data sets are on this machine."""

from __future__ import annotations


def data() -> None:
    """List the data sets: which are here, where, and what to do about the others."""
    from fedlib import paths
    from fedlib.cli import console
    from fedlib.data import available, cards, find

    out = console.console()
    kinds = {card.name: card.kind for family in cards().values() for card in family}
    rows = []
    for found in map(find, available()):
        where = found.where or ("part of a package" if found.present else "")
        rows.append(
            (found.name, kinds[found.name], "yes" if found.present else "no", where, found.what_to_do)
        )
    out.print(console.table(("name", "kind", "present", "where", "what to do"), rows))
    console.say(out, f"data folder: {paths.data_root()} (set FEDLIB_DATA to use another)")
