"""Writes docs/tour.md: the way of one small function through all stages, with the real text of each.

python tools/tour.py            rewrite the page
python tools/tour.py --check    fail if the page is not what the compiler says today
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
PAGE = ROOT / "docs" / "tour.md"

PROGRAM = """\
import torch
from torch.nn.functional import gelu

def normalised(x, bias):
    y = gelu(x + bias)
    return y / y.norm(dim=-1, keepdim=True)
"""

INTRODUCTION = f"""\
# A tour: one function through all stages

This page is written by `python tools/tour.py` (a test checks that it is true). The program is

```python
{PROGRAM}```

called as `kiln.compile(normalised)(torch.randn(128, 256), torch.randn(256))` under `torch.no_grad()`. `KILN_DUMP=folder` writes all of
these texts for any program, one numbered file per stage.

`kiln.compile` returns a *dispatcher* (`csrc/frames/dispatcher.cpp`): a C callable that binds the arguments, walks the compiled
variants, checks the guards of each natively, and calls the code of the first that fits. At the first call there is none: the
dispatcher calls `CompileSession.miss` (`kiln/pipeline/session.py`), which captures and compiles.
"""

STAGES = {
    "torch_graph": (
        "Capture: torch calls",
        "The symbolic interpreter (`kiln/capture/interpreter`) runs the bytecode on values that know their *source*. Torch calls are\n"
        "executed on fake tensors by the recorder (`kiln/graph/trace`), which keeps a log of them. A user backend gets the log as\n"
        "this `torch.fx` graph.",
    ),
    "graph": (
        "Trace: primitives",
        "The same run, one level lower: below autograd, a dispatch mode sees ATen ops, decomposes them into primitives\n"
        "(`kiln/graph/ops`) and functionalises them while recording. Each node knows the torch call and the line it came from.",
    ),
    "passes": (
        "Graph passes",
        "Rewrites as data, common subexpressions, constants, dead code (`kiln/graph/passes`). Here there is nothing to improve.",
    ),
    "lowering": (
        "Lowering: loops",
        "Each value that must exist in memory becomes a loop nest with a body; views become index arithmetic, cheap producers are\n"
        "inlined (`kiln/loops/lowering`). `gelu` is kept: it is used twice and too expensive to compute again.",
    ),
    "schedule": (
        "Schedule: kernels",
        "Fusion (`kiln/loops/fusion`): the three loops become one kernel. A unit is a row; the row of `gelu` stays on chip in\n"
        "`row0`, the sum of squares in `sum1`. Sizes that the code does not need are arguments (`n0`), so kernels are shared.",
    ),
    "plan": (
        "Plan",
        "What the region does, as data (`kiln/plan/plan.py`): the native executor (`csrc/executor`) runs it, the cache stores it.",
    ),
    "kernels": (
        "Kernel",
        "Self-contained C++ with GCC vectors (`kiln/loops/codegen/cpp`); the prelude with the math functions it uses is left out here.\n"
        "The executor calls it for ranges of units on torch's own thread pool.",
    ),
    "bytecode": (
        "Transformed code",
        "Loads what the region needs, calls it, rebuilds the results (`kiln/capture/interpreter/codegen.py`). The constant is the\n"
        "executor itself: no generated wrapper.",
    ),
    "guards": (
        "Guards",
        "When this code may run in place of the original. The list becomes a native tree (`csrc/frames/guard_tree.cpp`).",
    ),
}
LANGUAGE = {"torch_graph": "python", "kernels": "cpp"}


def stage_texts() -> dict[str, str]:
    """The text of each stage by name, compiled in this process."""
    import torch

    import kiln

    with tempfile.TemporaryDirectory() as folder:
        os.environ["KILN_DUMP"] = folder
        namespace: dict[str, object] = {"__name__": "program"}
        exec(compile(PROGRAM, "program.py", "exec"), namespace)
        compiled = kiln.compile(namespace["normalised"], fullgraph=True, options={"cache": False})
        with torch.no_grad():
            compiled(torch.randn(128, 256), torch.randn(256))
        del os.environ["KILN_DUMP"]
        files = sorted(Path(folder).glob("*/*.txt"))
        return {file.stem.partition("_")[2]: plain(file.read_text()) for file in files}


def plain(text: str) -> str:
    """Without what differs from run to run or machine to machine."""
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    text = re.sub(r" from '[^']*site-packages/", " from '", text)
    kernel = text.find("\nnamespace k_")
    return text[kernel:].strip() if kernel >= 0 else text.strip()


def page() -> str:
    texts = stage_texts()
    parts = [INTRODUCTION]
    for number, (stage, (title, prose)) in enumerate(STAGES.items(), 1):
        parts.append(f"## {number}. {title}\n\n{prose}\n\n```{LANGUAGE.get(stage, '')}\n{texts[stage]}\n```\n")
    parts.append(
        "At the next call with such arguments only the guards, the transformed code and the plan run. A training step has two\n"
        "plans, cut out of one joint graph (`kiln/graph/autograd`), behind one autograd node (`csrc/executor`).\n"
    )
    return "\n".join(parts)


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        return int(PAGE.read_text() != text)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
