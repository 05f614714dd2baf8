"""Compiles or loads programs in a process of its own: `python -m tests.persist.worker <cache folder> <file> [names]`.

Writes results and counts to the file; the results of all programs, or of `names`, in order.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

import kiln
from kiln.api.compiler import session_of
from tests.persist.programs import PROGRAMS, run

COMPILER = (
    "kiln.capture.interpreter.", "kiln.graph.ir.", "kiln.graph.trace.", "kiln.loops.", "kiln.build.cpp",
    "kiln.pipeline.stages",
)  # fmt: skip
"""The beginnings of the names of modules that only compile."""


def record(name: str, folder: str) -> dict[str, Any]:
    """Result, counts and stages of one program."""
    function, args, kwargs = PROGRAMS[name]()
    compiled = kiln.compile(function, options={"cache": True, "cache_dir": folder})
    stages: set[str] = set()
    session_of(compiled).events.listen(lambda event: stages.add(event.stage))
    result = run(compiled, args, kwargs)
    report = kiln.report_of(compiled)
    return {
        "result": result,
        "compiles": report.compiles,
        "loaded": report.loaded,
        "eager": report.eager,
        "unsaved": report.unsaved,
        "stages": sorted(stages),
        "compiler": [name for name in sys.modules if name.startswith(COMPILER)],
    }


def main(folder: str, file: str, *names: str) -> None:
    torch.set_num_threads(1)
    torch.save({name: record(name, folder) for name in names or PROGRAMS}, Path(file))


if __name__ == "__main__":
    main(*sys.argv[1:])
