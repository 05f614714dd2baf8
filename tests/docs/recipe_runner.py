"""Runs the toys of recipes in copies of the package: `python recipe_runner.py FOLDER NAME...`, see `test_recipes.py`.

Each toy runs in a fork, so that torch is imported once. The last line of the output is JSON: name -> traceback or "".
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path

import torch

TOYS = Path(__file__).parent / "recipes"


def run(folder: str, name: str) -> None:
    """Kiln is imported from the copy, `tests` from the repository."""
    sys.path[:0] = [os.path.join(folder, name)]
    sys.path.append(os.getcwd())
    os.environ["KILN_DUMP"] = os.path.join(folder, f"{name}-dump")
    torch.manual_seed(0)
    runpy.run_path(str(TOYS / f"{name}.py"))["check"]()


def run_in_fork(folder: str, name: str) -> str:
    """The traceback of the toy's error as text."""
    with tempfile.TemporaryFile("w+") as report:
        child = os.fork()
        if child == 0:
            try:
                run(folder, name)
            except BaseException:
                report.write(traceback.format_exc())
                report.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        report.seek(0)
        return report.read() or (f"the process ended with status {status}" if status else "")


if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    print(json.dumps({name: run_in_fork(folder, name) for name in names}))
