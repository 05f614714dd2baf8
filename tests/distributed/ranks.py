"""Processes of one gloo group that run the same cases.

    run_cases("tests.distributed.collective_cases", size=2)     {"all_reduce": "", "groups": "rank 1: Error ..."}

A case is a function of a module's CASES. All cases run in one group of processes, in order: a start costs seconds. A
rank whose case fails goes on; what a case leaves half-done ends the others by the time limit of the group.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from tests.child import ROOT, search_path

LIMIT = datetime.timedelta(seconds=60)


def run_cases(*modules: str, size: int = 2) -> dict[str, str]:
    """The problems of each case, of all ranks; an empty text where all went well. The ranks share a cache."""
    with tempfile.TemporaryDirectory() as folder:
        commands = [
            [sys.executable, "-m", "tests.distributed.ranks", ",".join(modules), str(rank), str(size), folder]
            for rank in range(size)
        ]
        environment = {"PYTHONPATH": search_path(), "KILN_OPTIONS": f"cache_dir={folder}/cache", "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True)
            for command in commands
        ]
        errors = [rank.communicate(timeout=280)[1] for rank in ranks]
        found: dict[str, str] = {}
        for rank in range(size):
            path = Path(folder) / f"result{rank}"
            assert path.exists(), errors[rank]
            for name, problem in json.loads(path.read_text()).items():
                text = f"rank {rank}: {problem}\n" if problem else ""
                found[name] = found.get(name, "") + text
        return found


def main(modules: str, rank: int, size: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=LIMIT)
    problems = {}
    cases = [item for name in modules.split(",") for item in importlib.import_module(name).CASES.items()]
    for name, case in cases:
        torch.manual_seed(0)
        try:
            case(rank, size)
            problems[name] = ""
        except Exception:
            problems[name] = traceback.format_exc()[-1500:]
        dist.barrier()
    (Path(folder) / f"result{rank}").write_text(json.dumps(problems))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
