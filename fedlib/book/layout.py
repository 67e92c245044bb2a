"""Where the sources of the book lie and where its parts are made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedlib import paths
from fedlib.errors import InputError


@dataclass(frozen=True)
class Layout:
    """The folders of one book, all below ``root``."""

    root: Path

    @classmethod
    def of_checkout(cls) -> Layout:
        """Return the layout of the checkout that fedlib runs from.

        Raises:
            InputError: if fedlib is installed without a checkout.
        """
        root = paths.repo_root()
        if root is None:
            raise InputError(
                "fedlib is installed without its notebooks; use it from a clone of the repository"
            )
        return cls(root)

    @property
    def notebooks(self) -> Path:
        """Source notebooks."""
        return self.root / "notebooks"

    @property
    def book(self) -> Path:
        """Sources of the book."""
        return self.root / "book"

    @property
    def executed(self) -> Path:
        """Executed notebooks, which the table of contents lists."""
        return self.book / "_executed"

    @property
    def generated(self) -> Path:
        """Markdown made from the executed notebooks."""
        return self.book / "_generated"

    @property
    def recorded(self) -> Path:
        """Recorded results of long runs, see ``fedlib.report.recorded``."""
        return self.book / "recorded"

    @property
    def html(self) -> Path:
        """The built site."""
        return self.book / "_build" / "html"

    @property
    def lock(self) -> Path:
        """Exact versions of the installed packages."""
        return self.root / "requirements.lock"

    def sources(self) -> dict[str, Path]:
        """Return the source notebooks by page name, for example ``mpt/training-time``, sorted."""
        return {
            path.relative_to(self.notebooks).with_suffix("").as_posix(): path
            for path in sorted(self.notebooks.rglob("*.ipynb"))
            if ".ipynb_checkpoints" not in path.parts
        }

    def executed_copy(self, page: str) -> Path:
        """Return the path of a page's executed notebook."""
        return self.executed / f"{page}.ipynb"
