"""What notebooks show: figures, tables, verdicts and where the numbers come from."""

from fedlib.report import departure, summaries
from fedlib.report.evidence import finding, finish, judge, provenance
from fedlib.report.figures import bars, curves, heat_map
from fedlib.report.tables import mean_sd, scale, show

__all__ = [
    "bars",
    "curves",
    "departure",
    "finding",
    "finish",
    "heat_map",
    "judge",
    "mean_sd",
    "provenance",
    "scale",
    "show",
    "summaries",
]
