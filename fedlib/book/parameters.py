"""Typed notebook parameters, declared by plain lines that papermill and people can read too.

A declaration is one line of the cell tagged ``parameters``::

    seeds = None  # int | None, at least 1: number of repetitions; None takes that of the profile

that is ``name = literal  # type[, constraint]: meaning``. Types: ``int``, ``float``, ``bool``, ``str``,
``dict``, ``list[int]``, ``list[float]``, ``list[str]``, each optionally ``| None``. Constraints, which bind
every item of a list: ``one of a | b``, ``at least 1`` (also ``above``, ``at most``, ``below``), ``in (0, 1]``.
The bounds are words because papermill cannot read a comment that holds an equals sign.
"""

from __future__ import annotations

import ast
import io
import operator
import re
import tokenize
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from fedlib.errors import InputError, choose

_SCALARS: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str, "dict": dict[str, Any]}
_COMMENT = re.compile(
    r"#\s*(?P<type>int|float|bool|str|dict|list\[(?:int|float|str)\])(?P<optional>\s*\|\s*None)?"
    r"(?:,\s*(?P<constraint>.+?))?:\s+(?P<meaning>\S.*)"
)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "at least": operator.ge,
    "above": operator.gt,
    "at most": operator.le,
    "below": operator.lt,
}
_BOUND = re.compile(r"(at least|above|at most|below)\s+(\S+)")
_INTERVAL = re.compile(r"in\s*([\[(])\s*([^,\s]+)\s*,\s*([^\])\s]+)\s*([\])])")


class Parameter(BaseModel):
    """One declared parameter.

    Attributes:
        name: Python name.
        type: declared type without ``| None``.
        optional: whether None is allowed.
        constraint: declared constraint, empty if there is none.
        meaning: one sentence for the reader.
        default: value in the source notebook.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    type: str
    optional: bool
    constraint: str
    meaning: str
    default: Any

    @property
    def allowed(self) -> str:
        """What the declaration allows, in its own words."""
        kind = f"{self.type} | None" if self.optional else self.type
        return f"{kind}, {self.constraint}" if self.constraint else kind

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        item = self.type.removeprefix("list[").removesuffix("]")
        kind: Any = _SCALARS[item]
        if self.constraint:
            kind = Annotated[kind, AfterValidator(_test(self.constraint, _SCALARS[item]))]
        if self.type.startswith("list["):
            kind = list[kind]
        if self.optional:
            kind = kind | None
        return TypeAdapter(kind, config=ConfigDict(strict=True, allow_inf_nan=False))

    def check(self, value: Any) -> Any:
        """Return ``value`` as the declared type; whole numbers become floats where a float is declared.

        Raises:
            InputError: if the type or the constraint does not hold; it names the value and what is allowed.
        """
        if self.type == "str" and isinstance(value, str) and self.constraint.startswith("one of "):
            return choose(f"parameter {self.name}", value, _options(self.constraint, str))
        try:
            return self._adapter.validate_python(value)
        except ValidationError:
            raise InputError(f"parameter {self.name} is {value!r}; allowed: {self.allowed}") from None

    def read(self, text: str) -> Any:
        """Return the checked value of a command-line text: a YAML scalar, list or mapping.

        Where a string is declared, a text that YAML would read as a number or a truth value stays a string.

        Raises:
            InputError: if the text is not YAML or the value is not allowed.
        """
        try:
            # YAML 1.2: 1e-3 is a number, and yes and on are strings.
            value = YAML(typ="safe", pure=True).load(text)
        except YAMLError:
            raise InputError(
                f"parameter {self.name} is {text!r}, not YAML; allowed: {self.allowed}"
            ) from None
        if text == "None":
            value = None
        if self.type == "str" and not isinstance(value, str) and not (value is None and self.optional):
            value = text
        return self.check(value)


def parse(source: str) -> dict[str, Parameter]:
    """Return the parameters that the source text of a ``parameters`` cell declares, by name.

    Raises:
        InputError: if a line is not a declaration, a name is declared twice, or a default is not allowed by
            its own declaration.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise InputError(f"the parameters cell is not Python: {error.msg} in line {error.lineno}") from None
    comments = _comments(source)
    found: dict[str, Parameter] = {}
    for node in tree.body:
        line = ast.get_source_segment(source, node) or ""
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if node.lineno == node.end_lineno:
                pass
            case _:
                raise InputError(f"parameters cell: {line!r} is not 'name = literal' on one line")
        if name in found:
            raise InputError(f"parameters cell: {name} is declared twice")
        try:
            default = ast.literal_eval(value)
        except ValueError:
            raise InputError(f"parameters cell: the default in {line!r} is not a literal") from None
        match_ = _COMMENT.fullmatch(comments.get(node.lineno, ""))
        if match_ is None:
            raise InputError(f"parameters cell: {line!r} lacks its comment '# type[, constraint]: meaning'")
        parameter = Parameter(
            name=name,
            type=match_["type"],
            optional=match_["optional"] is not None,
            constraint=match_["constraint"] or "",
            meaning=match_["meaning"],
            default=default,
        )
        parameter.check(default)
        found[name] = parameter
    return found


def known(parameters: Mapping[str, Parameter], names: Iterable[str], owner: str) -> None:
    """Refuse names that ``owner`` does not declare.

    Raises:
        InputError: naming the first unknown name, all allowed ones and the closest of them.
    """
    for name in names:
        if not parameters:
            raise InputError(f"{owner} has no parameters, so {name!r} cannot be set")
        choose(f"parameter of {owner}", name, parameters)


def split(assignments: Iterable[str]) -> dict[str, str]:
    """Split ``name=value`` texts.

    Raises:
        InputError: for a text without ``=`` or a name given twice.
    """
    texts: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip().isidentifier():
            raise InputError(f"parameter {assignment!r}; allowed: name=value")
        if name.strip() in texts:
            raise InputError(f"parameter {name.strip()} is given twice")
        texts[name.strip()] = value.strip()
    return texts


def _comments(source: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


def _options(constraint: str, kind: type) -> list[Any]:
    return [kind(option.strip()) for option in constraint.removeprefix("one of ").split("|")]


def _test(constraint: str, kind: type) -> Callable[[Any], Any]:
    # Returns a pydantic validator; a ValueError means "not allowed".
    if constraint.startswith("one of "):
        options = _options(constraint, kind)
        holds: Callable[[Any], bool] = lambda value: value in options  # noqa: E731
    elif bound := _BOUND.fullmatch(constraint):
        compare, limit = _COMPARE[bound[1]], float(bound[2])
        holds = lambda value: compare(value, limit)  # noqa: E731
    elif interval := _INTERVAL.fullmatch(constraint):
        low, high = float(interval[2]), float(interval[3])
        above = _COMPARE["at least" if interval[1] == "[" else "above"]
        below = _COMPARE["at most" if interval[4] == "]" else "below"]
        holds = lambda value: above(value, low) and below(value, high)  # noqa: E731
    else:
        raise InputError(
            f"constraint of a parameter is {constraint!r}; "
            "allowed: 'one of a | b', 'at least 1', 'above 0', 'at most 1', 'below 1', 'in (0, 1]'"
        )

    def validate(value: Any) -> Any:
        if not holds(value):
            raise ValueError(constraint)
        return value

    return validate
