"""Audits of the FedCKA paper, from the numbers in the authors' repository."""

from __future__ import annotations

from collections.abc import Callable

from fedlib.report.audit.finding import Finding
from fedlib.report.register import Entry, table

_NDS = "fedcka_table2_nds.csv"
_SCENES = "fedcka_table1_scenes.csv"


def _nds(method: str) -> dict[str, float]:
    line = next(row for row in table(_NDS) if row["method"] == method)
    return {name: float(text) for name, text in line.items() if name != "method"}


_FEDERATED = ("fedavg", "feddyn", "pcgrad", "fedrep", "fedbn", "fedmc", "fedselect")


def _best_in_table_2(entry: Entry) -> Finding:
    best = max(_FEDERATED, key=lambda method: _nds(method)["average"])
    ours, central = _nds("fedcka")["average"], _nds("centralized")["average"]
    return Finding(
        ours <= _nds(best)["average"],
        f"NDS in the authors' repository: FedCKA {ours:.2f}, best other federated method {best} "
        f"{_nds(best)['average']:.2f}, centralized {central:.2f}.",
    )


def _margin_in_table_2(entry: Entry) -> Finding:
    margin = 100 * (_nds("fedcka")["average"] - max(_nds(method)["average"] for method in _FEDERATED))
    return Finding(
        # Both averages are rounded to 0.01, so their difference is known to one percentage point.
        abs(margin - entry.values[0].value) > 1 + 1e-9,
        f"The averages in the authors' repository differ by {margin:.0f} percentage points.",
    )


def _ranking_in_table_2(entry: Entry) -> Finding:
    shared = {method: _nds(method)["average"] for method in ("fedavg", "feddyn", "pcgrad")}
    static = {method: _nds(method)["average"] for method in ("fedbn", "fedrep")}
    selecting = {method: _nds(method)["average"] for method in ("fedselect", "fedmc")}
    comparable = min(shared.values()) <= min(static.values()) and max(static.values()) <= max(shared.values())
    best = min(selecting.values()) > max({**shared, **static}.values())
    words = ", ".join(f"{name} {value:.2f}" for name, value in {**shared, **static, **selecting}.items())
    return Finding(not (comparable and best), f"NDS in the authors' repository: {words}.")


def _all_clients_improve(entry: Entry) -> Finding:
    alone = _nds("own_domain")
    better = {
        method: sum(_nds(method)[domain] > alone[domain] for domain in "ABCDE")
        for method in (*_FEDERATED, "fedcka")
    }
    words = ", ".join(f"{method} {count}" for method, count in better.items())
    return Finding(
        better["fedcka"] < 5 or max(better[method] for method in _FEDERATED) == 5,
        f"Domains above own-domain training, of 5, in the authors' repository: {words}.",
    )


def _averages_in_table_2(entry: Entry) -> Finding:
    weights = {row["domain"]: int(row["val_scenes"]) for row in table(_SCENES)}
    gaps = {}
    for row in table(_NDS):
        mean = sum(float(row[d]) * weight for d, weight in weights.items()) / sum(weights.values())
        gaps[row["method"]] = abs(mean - float(row["average"]))
    # Each entry is rounded to 0.01: half of that for the average and half for the mean of the domains.
    wrong = sum(gap > 0.01 for gap in gaps.values())
    return Finding(
        wrong > 0,
        f"{len(gaps) - wrong} of {len(gaps)} averages in the authors' repository equal the mean over domains "
        f"weighted by validation scenes (largest gap {max(gaps.values()):.3f}).",
    )


AUDITS: dict[str, Callable[[Entry], Finding]] = {
    "fedcka_best_in_table_2": _best_in_table_2,
    "fedcka_margin_in_table_2": _margin_in_table_2,
    "fedcka_ranking_in_table_2": _ranking_in_table_2,
    "fedcka_all_clients_improve": _all_clients_improve,
    "fedcka_averages_in_table_2": _averages_in_table_2,
}
"""The audits of this paper by the name that register entries use."""
