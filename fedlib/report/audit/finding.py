"""What an audit of printed tables finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Outcome of an audit: whether the printed numbers contradict the statement, and what they say."""

    contradicted: bool
    text: str
