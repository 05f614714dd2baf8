"""Calls a static library from a C program that is linked with nothing but libc and libm."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

from kiln.programs.static.library import StaticLibrary

MAIN = """\
#define _POSIX_C_SOURCE 200112L
#include <stdio.h>
#include <stdlib.h>
#include "{header}"
static void *bytes(const char *path) {{
  FILE *file = fopen(path, "rb");
  fseek(file, 0, SEEK_END);
  long size = ftell(file);
  rewind(file);
  void *made;
  if (posix_memalign(&made, 64, (size + 64) / 64 * 64)) exit(9);
  if (fread(made, 1, size, file) != (size_t)size) exit(9);
  fclose(file);
  return made;
}}
int main(void) {{
  {name}_inputs in = {{0}};
  {name}_outputs out = {{0}};
  size_t size;
  void *arena;
  {inputs}
  int status = {name}_plan(&in, &out, &size);
  if (!status) {{
    {outputs}
    if (posix_memalign(&arena, 64, size + 64)) return 9;
    ((unsigned char *)arena)[size] = 77;
    status = {name}_run(&in, &out, arena, size);
    if (((unsigned char *)arena)[size] != 77) return 8;
    {written}
  }}
  printf("%d %zu %s\\n", status, status ? 0 : size, {name}_status(status));
  return 0;
}}
"""


def called(
    library: StaticLibrary, inputs: Sequence[torch.Tensor], like: Sequence[torch.Tensor], machine: Sequence[str] = ()
) -> tuple[list[torch.Tensor], str]:
    """The results, in the layouts of `like`, and what the program printed: status, bytes of the arena, message.

    `machine`: the C compiler, then the command that runs its programs.
    """
    compiler, *runner = machine or ("gcc",)
    folder = Path(library.path).parent
    header = Path(library.header)
    struct, result = [re.findall(r"\} (\w+);  /\*", part) for part in header.read_text().split("_inputs;", 1)]
    name = re.findall(r"^int (\w+)_run\(", header.read_text(), re.MULTILINE)[0]
    filled, made, written = [], [], []
    if "const void *weights;" in header.read_text():
        filled.append(f'in.weights = bytes("{Path(library.path).with_suffix(".weights")}");')
    for field, tensor in zip(struct, inputs, strict=True):
        (folder / f"{field}.in").write_bytes(data(tensor))
        filled.append(f'in.{field}.data = bytes("{folder / field}.in");')
        filled += [f"in.{field}.sizes[{axis}] = {size};" for axis, size in enumerate(tensor.shape)]
    for field, tensor in zip(result, like, strict=True):
        count = tensor.numel() * tensor.itemsize
        made += [f"if (out.{field}.sizes[{axis}] != {size}) return 7;" for axis, size in enumerate(tensor.shape)]
        made.append(f"out.{field}.data = malloc({count or 1});")
        written.append(f'FILE *{field} = fopen("{folder / field}.out", "wb");')
        written.append(f"fwrite(out.{field}.data, 1, {count}, {field}); fclose({field});")
    lines = ["\n  ".join(part) for part in (filled, made, written)]
    text = MAIN.format(header=header, name=name, inputs=lines[0], outputs=lines[1], written=lines[2])
    (folder / "main.c").write_text(text)
    static = ["-static"] if runner else []
    command = [compiler, "-std=c99", "-Wall", "-Werror", str(folder / "main.c"), library.path, *static, "-lm"]
    subprocess.run([*command, "-o", str(folder / "main")], check=True, timeout=100)
    run = subprocess.run([*runner, str(folder / "main")], capture_output=True, text=True, check=True, timeout=300)
    results = []
    if run.stdout.startswith("0 "):
        for field, tensor in zip(result, like, strict=True):
            raw = bytearray((folder / f"{field}.out").read_bytes())
            flat = torch.frombuffer(raw, dtype=tensor.dtype) if raw else torch.empty(0, dtype=tensor.dtype)
            results.append(flat.reshape(tensor.shape))
    return results, run.stdout.strip()


def data(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
