"""Records the graphs of small models on a GPU machine, for tests on machines without one.

    python tools/record_graphs.py tests/gpu_graphs/recorded

A torch without CUDA cannot trace what autograd does on CUDA, but lowering and what follows need only a graph's text.
Writes one file for inference and one each for forward and backward of a training step, for each model of the suite
`gpu` in a tiny form. Source locations are left out.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import kiln.api as api
from kiln.graph.ir.parse import parse_graph
from kiln.graph.ir.text import graph_text
from kiln_bench.models import build
from kiln_bench.suite import SuiteRow, load_suite
from kiln_bench.tiny import tiny

STAGES = {"graph": "infer", "forward_graph": "forward", "backward_graph": "backward"}


def texts(row: SuiteRow, train: bool) -> Iterator[tuple[str, str]]:
    """(infer, forward or backward; text of the graph)."""
    case = build(tiny(row, batch=2), train=train, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KILN_DUMP"] = folder
        case.run(api.compile(case.model, options={"cache": False}))
        for path in sorted(Path(folder).glob("*/*.txt")):
            kind = STAGES.get(path.stem.partition("_")[2])
            if kind is not None:
                yield kind, graph_text(parse_graph(path.read_text()), origins=False)


def main() -> None:
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for train in (False, True):
        for row in load_suite("gpu", train=train).rows:
            for kind, text in texts(row, train):
                path = target / f"{row.name}-{kind}.txt"
                path.write_text(text + "\n")
                print(path.name, len(text.splitlines()))


if __name__ == "__main__":
    main()
