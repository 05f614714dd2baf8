"""`python -m kiln bench --suite start`: how soon a process has its first result, and how much memory it takes.

    mobilenet-v2     first result    loaded     call   memory
    eager                  4.21 s    3.90 s   18.3 ms   512 MB
    package                1.30 s    1.21 s    7.1 ms   260 MB
    AOTInductor            2.10 s    1.95 s   10.2 ms   300 MB
    library                0.03 s    0.01 s    9.0 ms    40 MB

The figures above only show the form. Each is the median of processes of their own, in turns, on one thread: seconds
from the start of the process, of a later call (median of its calls), and the largest resident memory. Eager builds its
model and reads its weights from a file; `library` is the static library in a program in C, which maps its weights.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kiln.programs.program import Program
from kiln_bench.candidates import EXPORTERS
from kiln_bench.first_result import Plain
from kiln_bench.models import Case, build
from kiln_bench.results import write_data
from kiln_bench.suite import load_suite

FILES = {"eager": "model.pt", "package": "package.kiln", "AOTInductor": "package.pt2", "library": "main"}
COLUMNS = ("first", "loaded", "call", "bytes")
Times = dict[str, float]
HOST = """\
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include "{header}"
static const void *mapped(const char *path) {{
  struct stat about;
  int file = open(path, O_RDONLY);
  if (file < 0 || fstat(file, &about)) exit(9);
  return mmap(0, about.st_size, PROT_READ, MAP_PRIVATE, file, 0);
}}
static double now(void) {{
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  return at.tv_sec + at.tv_nsec * 1e-9;
}}
int main(int count, char **names) {{
  {name}_inputs in = {{.weights = mapped("{weights}"){inputs}}};
  {name}_outputs out;
  size_t bytes;
  if ({name}_plan(&in, &out, &bytes)) return 8;
  void *arena = aligned_alloc(64, bytes + 64);
  {outputs}
  double loaded = now(), first = 0;
  for (int call = 0; call <= atoi(names[1]); ++call) {{
    double start = now();
    if ({name}_run(&in, &out, arena, bytes)) return 7;
    if (!call) first = now();
    else printf("%.6f ", now() - start);
  }}
  printf("%.6f %.6f ", loaded, first);
  char line[256];
  FILE *status = fopen("/proc/self/status", "r");
  while (fgets(line, sizeof line, status))
    if (!strncmp(line, "VmHWM:", 6)) printf("%d", atoi(line + 6));
}}
"""


def host(folder: Path, inputs: Sequence[Tensor], outputs: int) -> None:
    """A program in C that calls the library."""
    text = (folder / "libnet.h").read_text()
    names, results = [re.findall(r"\} (\w+);  /\*", part) for part in text.split("_inputs;", 1)]
    given = ""
    for name, tensor in zip(names, inputs, strict=True):
        (folder / f"{name}.in").write_bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        sizes = ", ".join(map(str, tensor.shape))
        given += f',\n    .{name} = {{mapped("{folder / name}.in"), {{{sizes}}}}}'
    made = "\n  ".join([f"out.{name}.data = malloc({outputs});" for name in results])
    weights = folder / "libnet.weights"
    source = HOST.format(header=folder / "libnet.h", name="net", weights=weights, inputs=given, outputs=made)
    (folder / "main.c").write_text(source)
    command = ["gcc", "-O2", str(folder / "main.c"), str(folder / "libnet.a"), "-lm", "-o", str(folder / "main")]
    subprocess.run(command, check=True)


def write(case: Case, folder: Path) -> dict[str, str]:
    """The files of all kinds; the errors of those that cannot be made."""
    model, args = Plain(cast(nn.Module, case.model)), case.args
    kwargs: dict[str, object] = {name: value for name, value in case.kwargs.items() if isinstance(value, Tensor)}
    torch.save((args, kwargs), folder / "inputs.pt")
    torch.save(model, folder / FILES["eager"])
    program = cast(Program, EXPORTERS["kiln"].export(model, args, kwargs))
    with torch.no_grad():
        largest = max([tensor.numel() * tensor.itemsize for tensor in model(*args, **kwargs)])
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]

    def library() -> None:
        program.static_library(folder / "libnet.a", weights="mapped")
        host(folder, leaves, largest)

    def peer() -> None:
        exporter = EXPORTERS["torch"]
        exporter.package(exporter.export(model, args, kwargs), folder / FILES["AOTInductor"])

    works: Mapping[str, Callable[[], object]] = {
        "package": lambda: program.package(folder / FILES["package"]),
        "library": library,
        "AOTInductor": peer,
    }
    failures = {}
    for name, work in works.items():
        try:
            work()
        except Exception as problem:
            failures[name] = f"{type(problem).__name__}: {problem}"[:300]
    return failures


def measured(kind: str, folder: Path, calls: int) -> Times:
    """One process."""
    command = [str(folder / "main"), str(calls)]
    if kind != "library":
        command = [sys.executable, "-m", "kiln_bench.first_result", kind, str(folder), str(calls)]
    start, environment = time.time(), {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    *seconds, loaded, first, kilobytes = map(float, done.stdout.split())
    return {"first": first - start, "loaded": loaded - start, "call": median(seconds), "bytes": kilobytes * 1024}


def run(models: Sequence[str], rounds: int, calls: int, out: Path | None) -> int:
    """Measure; the exit status is 1 if Kiln fails on a row."""
    torch.set_num_threads(1)
    found: list[dict[str, object]] = []
    for row in load_suite("cpu").rows:
        if row.name not in models and row.title not in models:
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            failures = write(build(row, train=False, seed=0), folder)
            kinds = [kind for kind in FILES if kind not in failures]
            rows: dict[str, list[Times]] = {kind: [] for kind in kinds}
            for _ in range(rounds):
                for kind in random.sample(kinds, len(kinds)):
                    rows[kind].append(measured(kind, folder, calls))
        medians = {kind: {key: median([each[key] for each in rows[kind]]) for key in COLUMNS} for kind in kinds}
        print(f"{row.title:22}{'first result':>14}{'loaded':>10}{'call':>12}{'memory':>10}")
        for kind, times in medians.items():
            first, loaded, call, size = [times[key] for key in COLUMNS]
            print(f"{kind:22}{first:12.2f} s{loaded:8.2f} s{call * 1e3:9.1f} ms{size / 1e6:7.0f} MB", flush=True)
        print(*[f"{kind}: {problem}\n" for kind, problem in failures.items()], end="")
        found.append({"row": row.title, "medians": medians, "failures": failures})
    if out is not None:
        write_data(out, {"columns": "seconds from the start of a process; bytes", "starts": found})
    return int(any(["package" in cast(dict[str, str], row["failures"]) for row in found]))
