"""The shape of the register: entries, comparison rules and the words for verdicts, all validated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedlib.errors import choose

Word = Literal[
    "value reproduced",
    "trend reproduced at reduced scale",
    "not reproduced",
    "contradicted by the paper's own numbers",
    "not attempted",
]
REPRODUCED, TREND, NOT_REPRODUCED, CONTRADICTED, NOT_ATTEMPTED = WORDS = get_args(Word)

Paper = Literal["mpt", "fedcka", "vcl"]
PAPERS: tuple[str, ...] = get_args(Paper)
Kind = Literal["claim", "table", "figure", "cell"]
KINDS: tuple[str, ...] = get_args(Kind)

PREFIX = {"mpt": "MPT", "fedcka": "CKA", "vcl": "VCL"}

COLUMNS: dict[str, str] = {
    "seed": "repetition",
    "round": "communication round, counted from 1",
    "metric": "name of what was measured",
    "condition": "departure | no-departure",
    "phase": "before | after the departure",
    "rare_class": "label of the class that becomes rare",
    "remaining": "share of the rare class's samples that stay (0 to 1)",
    "readout": "how predictions are made: head | ncm | frozen | remaining | oracle",
    "distance": "distance of a nearest-class-mean readout: mahalanobis | euclidean | none",
    "method": "name of the method",
    "holdout": "whether remaining rare samples are kept out of training",
    "task": "classification task of the paper (objects | coarse | fine), or number of a continual task",
    "backbone": "name of the feature extractor",
    "dataset": "name of the data set within the comparison, without its source (bloodmnist)",
    "partition": "IID | dirichlet_0.6 | dirichlet_0.3",
    "clients": "homogeneous | heterogeneous backbones",
    "preset": "paper | code",
    "scope": "prediction scope: taw (task-aware) | cil (class-incremental) | all",
    "aggregation": "how client distributions are combined: mixture | single (the mixture's moments) | averaged",
    "space": "what makes the clients' features comparable: anchors | mean encoder",
    "replay": "whether old classes are replayed",
    "kd_weight": "weight of the distillation loss",
    "client": "client or domain that a model belongs to",
    "domain": "domain that a model is tested on",
    "part": "part of the network",
    "masking": "threshold | percentage",
    "level": "threshold or ratio of the masking",
    "samples": "number of inputs behind the similarity scores",
}
"""The columns that a comparison rule may name, with their meaning."""

_Scalar = bool | int | float | str
Filter = dict[str, _Scalar | tuple[_Scalar, ...]]
_NOTEBOOK = re.compile(r"(foundations|mpt|fedcka|vcl|synthesis)/[a-z0-9]+(-[a-z0-9]+)*")
_ID = re.compile(r"[A-Z]+-[A-Za-z0-9]+([-/][A-Za-z0-9()._-]+)*")


class Frozen(BaseModel):
    """A value that never changes and has no field but those declared."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Value(Frozen):
    """A number that the paper prints.

    Attributes:
        value: the number, in the paper's unit.
        name: what it is; empty where the statement says so.
        unit: unit, empty for a pure number or a fraction of one.
        spread: printed standard deviation, None where none is printed.
        printed: the number as printed (trailing zeros kept); made from ``value`` where not given.
    """

    value: float
    name: str = ""
    unit: str = ""
    spread: float | None = None
    printed: str = ""

    def __str__(self) -> str:
        number = self.printed or f"{self.value:g}"
        spread = "" if self.spread is None or "±" in number else f" ± {self.spread:g}"
        unit = f" {self.unit}" if self.unit else ""
        name = f"{self.name} " if self.name else ""
        return f"{name}{number}{spread}{unit}"


class Window(Frozen):
    """Which rounds of the filtered rows count. Exactly one form: ``first``, ``last``, or ``start`` with ``end``.

    Attributes:
        first: the first so many rounds (int), or this share of them (fraction of 1, at least one round).
        last: the same from the end.
        start: first round, absolute.
        end: last round, absolute, included.
    """

    first: int | float | None = None
    last: int | float | None = None
    start: int | None = None
    end: int | None = None

    @model_validator(mode="after")
    def _one_form(self) -> Window:
        absolute = self.start is not None or self.end is not None
        if (self.first is not None) + (self.last is not None) + absolute != 1:
            raise ValueError("a window is either first, or last, or start with end")
        for size in (self.first, self.last):
            if size is not None and not (0 < size < 1 or (size >= 1 and size == int(size))):
                raise ValueError(
                    f"a window's size is {size}; allowed: a whole number, or a share between 0 and 1"
                )
        return self

    def choose(self, rounds: Iterable[int]) -> list[int]:
        """Return the rounds of ``rounds`` that lie in the window, ascending (all, where there are fewer)."""
        ordered = sorted(set(rounds))
        size = self.first if self.first is not None else self.last
        if size is None:
            low = self.start if self.start is not None else ordered[0]
            high = self.end if self.end is not None else ordered[-1]
            return [number for number in ordered if low <= number <= high]
        count = int(size) if size >= 1 else max(1, round(size * len(ordered)))
        return ordered[:count] if self.first is not None else ordered[-count:]


class Rule(Frozen):
    """One comparison over the tidy frame that a page passes to ``report.judge``.

    Per seed and per group of ``over``, the quantity is the mean (or slope over rounds) of ``value`` in the rows
    that match, minus the same for ``minus`` and ``minus_rounds`` where given. Ours is then compared with
    ``against``, or with the constant ``reference``.

    Attributes:
        says: what must hold, in words.
        metric: value of the column ``metric`` on all sides (a side may name its own instead).
        where: column values that all sides share.
        ours: column values of our side; a tuple means any of these.
        against: column values of the other side; None compares with ``reference``.
        against_each: columns of the other side; every value that they take there must be beaten.
        minus: column values of rows that are subtracted on every side.
        rounds: rounds that count.
        minus_rounds: rounds of the subtracted rows.
        statistic: ``mean``, or ``slope`` of the least-squares line over rounds (per round).
        direction: ``>``, ``<``, or ``~`` for "equal up to ``margin``"; None where only a value is compared.
        margin: size that the effect must exceed; for ``~`` the largest difference that counts as equal.
        relative: divide the difference by the size of the other side.
        reference: what ours is compared with where ``against`` is absent.
        pool: columns that are averaged over; every other column must be fixed by the rule or constant.
        over: the comparison must hold in each group of these columns ...
        share: ... or in at least this share of the groups.
        value: the paper's number for ours (for the difference, where ``against`` is given).
        tolerance: largest distance to ``value`` that counts as reproduced; our choice.
        factor: our numbers are multiplied by this to get the paper's unit.
        deterministic: the quantity has no randomness (bytes, counts), so one seed suffices.
    """

    says: str
    metric: str | None = None
    where: Filter = {}
    ours: Filter = {}
    against: Filter | None = None
    against_each: tuple[str, ...] = ()
    minus: Filter | None = None
    rounds: Window | None = None
    minus_rounds: Window | None = None
    statistic: Literal["mean", "slope"] = "mean"
    direction: Literal[">", "<", "~"] | None = None
    margin: float = 0.0
    relative: bool = False
    reference: float = 0.0
    pool: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    value: float | None = None
    tolerance: Annotated[float, Field(ge=0)] | None = None
    factor: Annotated[float, Field(gt=0)] = 1.0
    deterministic: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Rule:
        if self.direction is None and self.value is None:
            raise ValueError("a rule needs a direction or a value")
        if (self.value is None) != (self.tolerance is None):
            raise ValueError("value and tolerance come together")
        if self.direction == "~" and self.margin <= 0:
            raise ValueError("direction ~ needs a positive margin")
        if self.against_each and self.against is None:
            raise ValueError("against_each needs against")
        if self.relative and self.against is None and self.reference == 0:
            raise ValueError("relative needs against, or a reference that is not 0")
        if self.value is not None and self.over:
            raise ValueError("a value belongs to one group; over cannot be used with it")
        if self.minus_rounds and not self.rounds and self.minus is None:
            raise ValueError("minus_rounds needs rounds or minus")
        for side in (self.ours, self.against or {}):
            if self.metric is None and "metric" not in side and "metric" not in self.where:
                raise ValueError("a side has no metric")
            if self.against is None:
                break
        filters = (self.where, self.ours, self.against or {}, self.minus or {})
        lists = (self.over, self.pool, self.against_each)
        for column in {name for names in (*filters, *lists) for name in names}:
            choose("rule column", column, [name for name in COLUMNS if name != "seed"])
        return self


class Cell(Frozen):
    """Where a printed table cell lies: file in ``register/tables``, the columns that name its row, its column."""

    file: str
    row: dict[str, str]
    column: str


class Entry(Frozen):
    """One claim, table, figure or table cell of a paper.

    Attributes:
        id: unique name, for example ``MPT-13``, ``CKA-T2``, ``VCL-T2/FedAvg/dirichlet_0.6/BloodMNIST``.
        paper: ``mpt``, ``fedcka`` or ``vcl``.
        kind: ``claim``, ``table``, ``figure`` or ``cell``.
        where: section, table or figure, and page where known.
        statement: what the paper says, in our words.
        values: the numbers that the paper prints for it.
        data: data sets of the paper that a value can be checked on, as ``fedlib.data`` names.
        notebook: page that judges it, ``part/name``.
        parts: comparisons; all must hold. Empty where the entry shows something and claims nothing.
        rests_on: ids of the claims that a table or figure shows; it holds as far as they hold.
        audit: name of the computation over the paper's own tables that can contradict it (``report.audit``).
        reason: why it is not attempted while no executed page judges it.
        note: what a reader must know to read it fairly.
        cell: where the number lies in the tables; only for cells.
    """

    id: str
    paper: Paper
    kind: Kind
    where: str
    statement: str
    values: tuple[Value, ...] = ()
    data: tuple[str, ...] = ()
    notebook: str
    parts: tuple[Rule, ...] = ()
    rests_on: tuple[str, ...] = ()
    audit: str | None = None
    reason: str
    note: str = ""
    cell: Cell | None = None

    @model_validator(mode="after")
    def _well_formed(self) -> Entry:
        if not (_ID.fullmatch(self.id) and self.id.startswith(PREFIX[self.paper] + "-")):
            raise ValueError(f"id {self.id!r} does not look like {PREFIX[self.paper]}-...")
        if not _NOTEBOOK.fullmatch(self.notebook) or self.notebook.split("/")[0] not in (
            self.paper,
            "foundations",
            "synthesis",
        ):
            raise ValueError(f"{self.id}: notebook {self.notebook!r} is no page name of {self.paper}")
        if not self.statement.strip() or not self.reason.strip():
            raise ValueError(f"{self.id}: statement and reason must not be empty")
        if (self.kind == "cell") != (self.cell is not None):
            raise ValueError(f"{self.id}: cells, and only cells, say where they lie in a table")
        if self.parts and self.rests_on:
            raise ValueError(f"{self.id}: an entry is judged by its parts or rests on others, not both")
        if any(part.value is not None for part in self.parts) and not self.data:
            raise ValueError(f"{self.id}: a value can only be checked on named data")
        return self

    @property
    def paper_value(self) -> str:
        """The paper's numbers in one line; a dash where it prints none."""
        return "; ".join(str(value) for value in self.values) or "–"


class Title(Frozen):
    """Name of a paper.

    Attributes:
        paper: short name.
        method: name of the method.
        title: full title.
        citation: key in the book's bibliography.
        year: year of publication.
    """

    paper: Paper
    method: str
    title: str
    citation: str
    year: int


class Register(Frozen):
    """All entries in the order of the files, and the titles of the papers."""

    titles: tuple[Title, ...]
    entries: tuple[Entry, ...]

    @model_validator(mode="after")
    def _unique(self) -> Register:
        for what, names in (
            ("id", Counter(entry.id for entry in self.entries)),
            ("cell", Counter(str(entry.cell) for entry in self.entries if entry.cell)),
        ):
            twice = [name for name, count in names.items() if count > 1]
            if twice:
                raise ValueError(f"{what} given twice: {', '.join(twice)}")
        known = {entry.id for entry in self.entries}
        for entry in self.entries:
            if missing := [name for name in entry.rests_on if name not in known]:
                raise ValueError(f"{entry.id} rests on {', '.join(missing)}, which is no entry")
        return self
