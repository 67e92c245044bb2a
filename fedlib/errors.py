"""The one error type for bad input, and the check that most inputs need."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


class InputError(ValueError):
    """Bad user input; the message names the offending value and what is allowed."""


def choose(name: str, value: T, allowed: Iterable[T]) -> T:
    """Return ``value`` if it is one of ``allowed``.

    Raises:
        InputError: otherwise, naming ``name``, the value, the allowed values and the closest of them.
    """
    options = list(allowed)
    if value in options:
        return value
    close = difflib.get_close_matches(str(value), [str(option) for option in options], n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise InputError(f"{name} is {value!r}; allowed: {', '.join(map(str, options))}{hint}")
