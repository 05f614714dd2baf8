"""Processes of one group that run the same cases.

    run_cases("tests.distributed.collective_cases", size=2)     {"all_reduce": "", "groups": "rank 1: Error ..."}
    python -m tests.distributed.ranks nccl 2 100 wrapper,dtensor      one process per GPU, at most 100 seconds

A case is a function of a module's CASES. All cases run in one group of processes, in order: a start costs seconds. A
rank whose case fails goes on; what a case leaves half-done ends the others by the time limit of the group. With gloo,
tensors are on the CPU; with NCCL, on the GPU of the rank.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from pathlib import Path

import torch
import torch.distributed as dist

from tests.child import ROOT, search_path

LIMIT = datetime.timedelta(seconds=60)


def run_cases(*modules: str, size: int = 2, backend: str = "gloo", seconds: float = 600) -> dict[str, str]:
    """The problems of each case, of all ranks; an empty text where all went well. The ranks share a cache."""
    with tempfile.TemporaryDirectory() as folder:
        commands = [
            [sys.executable, "-m", "tests.distributed.ranks", backend, ",".join(modules), str(rank), str(size), folder]
            for rank in range(size)
        ]
        environment = {"PYTHONPATH": search_path(), "KILN_OPTIONS": f"cache_dir={folder}/cache", "OMP_NUM_THREADS": "1"}
        environment["PYTHONFAULTHANDLER"] = "1"  # where a rank crashes is seen
        end, found = time.monotonic() + seconds, dict[str, str]()
        with ExitStack() as files:
            outputs = [files.enter_context((Path(folder) / f"errors{rank}").open("w+")) for rank in range(size)]
            ranks = [
                subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, stderr=output)
                for command, output in zip(commands, outputs, strict=True)
            ]
            for number, (rank, output) in enumerate(zip(ranks, outputs, strict=True)):
                why = ""
                try:
                    rank.wait(max(end - time.monotonic(), 0.1))
                except subprocess.TimeoutExpired:
                    why = f"stopped after {seconds} seconds, "
                    rank.kill()
                    rank.wait()
                if rank.returncode:
                    output.seek(0)
                    text = f"rank {number}: {why}exit status {rank.returncode}: {output.read()[-3000:]}\n"
                    found["all"] = found.get("all", "") + text
        for rank in range(size):
            path = Path(folder) / f"result{rank}"
            for name, problem in json.loads(path.read_text()).items() if path.exists() else ():
                text = f"rank {rank}: {problem}\n" if problem else ""
                found[name] = found.get(name, "") + text
        return found


def main(backend: str, modules: str, rank: int, size: int, folder: str) -> None:
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
        torch.set_default_device(torch.device("cuda", rank))
    store = dist.FileStore(str(Path(folder) / "store"), size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=LIMIT)
    problems = {}
    cases = [item for name in modules.split(",") for item in importlib.import_module(name).CASES.items()]
    for name, case in cases:
        torch.manual_seed(0)
        try:
            case(rank, size)
            problems[name] = ""
        except Exception:
            problems[name] = traceback.format_exc()[-1500:]
        (Path(folder) / f"result{rank}").write_text(json.dumps(problems))
        dist.barrier()
    dist.destroy_process_group()


def report(backend: str, size: int, seconds: float, names: str) -> None:
    """Runs cases by hand and prints what became of them."""
    modules = [f"tests.distributed.{name}_cases" for name in names.split(",")]
    found = run_cases(*modules, size=size, backend=backend, seconds=seconds)
    wrong = {name: text for name, text in found.items() if text}
    for name, text in wrong.items():
        print(f"{name}: {text}")
    print(f"{len(found) - len(wrong)} of {len(found)} cases right; wrong: {', '.join(wrong) or 'none'}")
    sys.exit(bool(wrong))


def device_type() -> str:
    """Of the tensors of the cases."""
    return torch.get_default_device().type


def exact() -> dict[str, float]:
    """Tolerances of results that equal eager's bit for bit on a CPU; kernels of GPUs contract products and sums."""
    return {"rtol": 0, "atol": 0} if device_type() == "cpu" else {"rtol": 1e-5, "atol": 1e-5}


if __name__ == "__main__":
    if len(sys.argv) == 5:
        report(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
    else:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
