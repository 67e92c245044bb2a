"""The process that executes one notebook: ``python -m fedlib.book.child FOLDER``, started by ``execute``.

It reads ``job.json`` in the folder that it is given, lets papermill execute ``source.ipynb`` into
``executed.ipynb`` and writes ``result.json``. Its standard input is a pipe held by the parent: when that
closes, the parent is gone, and the child ends its kernel and itself.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fedlib.book import processes

KERNEL = "python3"
START_TIMEOUT_S = 180
SOURCE, EXECUTED, JOB, RESULT = "source.ipynb", "executed.ipynb", "job.json", "result.json"


def main(folder: Path) -> None:
    """Execute the job in ``folder``."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    start = time.perf_counter()
    error = execute(folder, job["parameters"])
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    result = {"error": error, "seconds": time.perf_counter() - start, "peak_memory_mib": peak_kib // 1024}
    (folder / RESULT).write_text(json.dumps(result), encoding="utf-8")


def execute(folder: Path, parameters: dict[str, Any]) -> dict[str, str] | None:
    """Let papermill execute the notebook in ``folder``; return the error's name and text, or None.

    A kernel that did not start at all is tried once more: ports may clash when several start at once.
    """
    error = _papermill(folder, parameters)
    if error and last_started_cell(folder / EXECUTED) is None:
        error = _papermill(folder, parameters)
    return error


def last_started_cell(path: Path) -> int | None:
    """Return the number (1 is the first) in the source of the last cell that papermill started, if any.

    ``path`` is the copy that papermill keeps writing; it may be cut off or absent.
    """
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        return None
    added = {"injected-parameters", "papermill-error-cell-tag"}  # cells that are not in the source
    own = [cell for cell in cells if not added & set(cell["metadata"].get("tags", []))]
    started = [n for n, cell in enumerate(own, 1) if cell["metadata"].get("papermill", {}).get("start_time")]
    return started[-1] if started else None


def _papermill(folder: Path, parameters: dict[str, Any]) -> dict[str, str] | None:
    import papermill

    try:
        papermill.execute_notebook(
            folder / SOURCE,
            folder / EXECUTED,
            parameters=parameters,
            kernel_name=KERNEL,
            start_timeout=START_TIMEOUT_S,
            progress_bar=False,
            cwd=folder,
        )
    except papermill.PapermillExecutionError as error:
        return {"name": error.ename, "text": error.evalue}
    except Exception as error:  # whatever papermill or the kernel's client raises is this page's failure
        return {"name": type(error).__name__, "text": str(error)}
    return None


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    processes.end(os.environ[processes.MARK])
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
