"""Writes csrc/executor/program_format.h: the enums and step records of kiln/plan/program_format.py, as C++.

python tools/plan_header.py            rewrite the header
python tools/plan_header.py --check    fail if the header is not what the declarations say today
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from enum import IntEnum
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kiln.plan.encode import FORMAT  # noqa: E402
from kiln.plan.program_format import ENUMS, MAGIC, NATIVE_STEPS, NativeStep  # noqa: E402

HEADER = ROOT / "csrc" / "executor" / "program_format.h"

INTRODUCTION = """\
// The words of a program: what kiln/plan/encode.py writes and program.cpp reads.
// Written by tools/plan_header.py from kiln/plan/program_format.py; a test compares them.
// clang-format off
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace kiln {

class AtenCall;      // aten.h
class DeviceKernel;  // device.h
struct Argument;     // program.h
struct Program;

using Slot = int32_t;
using Register = int32_t;
using LayoutIndex = int32_t;
using DeviceIndex = int8_t;  // -1: the current device
inline constexpr int32_t kNone = -1;

struct DevicePlace {
  int8_t type;
  DeviceIndex index;
};
"""


def header() -> str:
    """The header as it has to be."""
    lines = [INTRODUCTION, f"inline constexpr int64_t kMagic = {MAGIC:#x};"]
    lines += [f"inline constexpr int64_t kFormat = {FORMAT:#x};", ""]
    for kinds in ENUMS:
        lines += enum_lines(kinds)
    lines.append("\n// Steps. `fields`: those that are in the words, in that order.")
    for step in NATIVE_STEPS:
        lines += struct_lines(step)
    names = ", ".join(f"{step.name}Step" for step in NATIVE_STEPS)
    lines.append("// In the order of the numbers that stand for them.")
    lines += [textwrap.fill(f"using StepData = std::variant<{names}>;", width=100, subsequent_indent="    "), ""]
    return "\n".join([*lines, "}  // namespace kiln", ""])


def enum_lines(kinds: type[IntEnum]) -> Iterator[str]:
    yield f"// {' '.join(inspect.cleandoc(kinds.__doc__ or '').split())}"
    names = ["k" + "".join(part.capitalize() for part in kind.name.split("_")) for kind in kinds]
    names[0] += f" = {next(iter(kinds)).value}"
    yield textwrap.fill(
        f"enum class {kinds.__name__} : int8_t {{ {', '.join(names)} }};", width=100, subsequent_indent="  "
    )


def struct_lines(step: NativeStep) -> Iterator[str]:
    yield f"struct {step.name}Step {{"
    for cpp, group in groupby(step.fields, key=lambda field: field[1].cpp):
        yield f"  {cpp} {', '.join(name for name, _ in group)};"
    fields = f"  auto fields() {{ return std::tie({', '.join(name for name, _ in step.encoded)}); }}"
    yield textwrap.fill(fields, width=100, subsequent_indent="    ")
    yield "};"


def main() -> int:
    text = header()
    if "--check" in sys.argv:
        return int(not HEADER.exists() or HEADER.read_text() != text)
    HEADER.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
