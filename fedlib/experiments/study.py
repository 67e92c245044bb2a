"""What an experiment hands to a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from fedlib.runs import Run


@dataclass(frozen=True)
class Study:
    """The runs of an experiment and their metrics in one tidy table.

    Attributes:
        runs: the stored runs.
        metrics: condition columns, ``metric`` and ``value``, one measured number a row.
    """

    runs: tuple[Run, ...]
    metrics: pd.DataFrame

    @classmethod
    def of(cls, runs: Sequence[Run], labels: Sequence[Mapping[str, object]] | None = None) -> Study:
        """Put the metrics of ``runs`` together; ``labels`` adds condition columns to each run's rows."""
        parts = [
            run.metrics.assign(**dict(label))
            for run, label in zip(runs, labels or [{}] * len(runs), strict=True)
        ]
        return cls(tuple(runs), pd.concat(parts, ignore_index=True))

    def select(self, **conditions: object) -> pd.DataFrame:
        """Return the rows with these column values; a list or tuple means any of them.

        Raises:
            KeyError: unknown column.
            ValueError: no row is left.
        """
        rows = self.metrics
        for column, wanted in conditions.items():
            options = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
            rows = rows[rows[column].isin(options)]
        if rows.empty:
            raise ValueError(f"no row has {conditions}")
        return rows
