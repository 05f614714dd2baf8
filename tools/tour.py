"""Writes docs/tour.md: the file for each question, and one small function through all stages with their real texts.

python tools/tour.py            rewrite the page
python tools/tour.py --check    fail if the page is not up to date
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

from tour_map import folder_text, map_text

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

INTRODUCTION = """\
# Tour

Written by `python tools/tour.py`; a test checks that it is up to date. The folders, the file for each question, then one
small function through all stages. Each module says in its first line what it does: `head -qn1 kiln/loops/fusion/*.py`.

## The folders
"""

QUESTIONS = """\
## The file for each question
"""

STORY = f"""\
## One function through all stages

```python
{PROGRAM}```

called as `kiln.compile(normalised)(torch.randn(128, 256), torch.randn(256))` under `torch.no_grad()`. `KILN_DUMP=folder`
writes these texts for any program, one numbered file per stage.

`kiln.compile` returns a *dispatcher* (`csrc/frames/dispatcher.cpp`): a C callable that binds the arguments, checks the
guards of each compiled variant and calls the code of the first that fits. At the first call there is none, and the
dispatcher calls `CompileSession.miss` (`kiln/pipeline/session.py`), which captures and compiles.
"""

STAGES = {
    "torch_graph": (
        "Capture: torch calls",
        "The symbolic interpreter (`kiln/capture/interpreter`) runs the bytecode on values that know their *source*. Torch\n"
        "calls run on fake tensors; the recorder (`kiln/graph/trace`) logs them. A user backend gets the log as this\n"
        "`torch.fx` graph.",
    ),
    "graph": (
        "Trace: primitives",
        "In the same run, a dispatch mode below autograd sees ATen ops, decomposes them into primitives (`kiln/graph/ops`) and\n"
        "functionalises them. Each node knows the torch call and the line that it came from.",
    ),
    "passes": (
        "Graph passes",
        "Rewrite rules, common subexpressions, constants, dead code (`kiln/graph/passes`). There is nothing to improve here.",
    ),
    "lowering": (
        "Lowering: loops",
        "Each value that gets memory becomes a loop nest with a body; views become index arithmetic, cheap producers are inlined\n"
        "(`kiln/loops/lowering`). `gelu` gets a buffer: it is used twice and expensive to recompute.",
    ),
    "schedule": (
        "Fusion: kernels",
        "The three loops become one kernel (`kiln/loops/fusion`). Its unit of work is a row; the row of `gelu` stays on chip in\n"
        "`row0`, the sum of squares in `sum1`. Sizes that the code does not depend on are arguments (`n0`), so that kernels are\n"
        "shared.",
    ),
    "plan": (
        "Plan",
        "What the region does, as data (`kiln/plan/plan.py`). The native executor (`csrc/executor`) runs it, the cache stores it;\n"
        "`KILN_DUMP` writes it as Python, too (`kiln/plan/python_view.py`).",
    ),
    "kernels": (
        "Kernel",
        "Self-contained C++ with GCC's vector extensions (`kiln/loops/codegen/cpp`); the prelude with its math functions is left\n"
        "out here. The executor calls it for ranges of units on torch's own thread pool.",
    ),
    "bytecode": (
        "Transformed code",
        "Calls the region and rebuilds the results (`kiln/capture/interpreter/codegen.py`). The constant is the executor itself:\n"
        "there is no generated wrapper.",
    ),
    "guards": (
        "Guards",
        "When this code may run instead of the original. The list becomes a native tree (`csrc/frames/guard_tree.cpp`).",
    ),
}
AVX2 = frozenset(("avx2", "fma"))
"""The machine of the page, whatever this one has besides."""
LANGUAGE = {"torch_graph": "python", "kernels": "cpp"}


def stage_texts() -> dict[str, str]:
    """The text of each stage by name; the program is compiled in this process."""
    import torch

    import kiln
    from kiln.support import target

    target.cpu_flags = lambda: AVX2  # type: ignore[assignment]
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
    """Without what differs between runs or machines."""
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    text = re.sub(r" from '[^']*site-packages/", " from '", text)
    kernel = text.find("\nnamespace k_")
    return text[kernel:].strip() if kernel >= 0 else text.strip()


def page() -> str:
    texts = stage_texts()
    parts = [INTRODUCTION, folder_text(), QUESTIONS, *map_text(), STORY]
    for number, (stage, (title, prose)) in enumerate(STAGES.items(), 1):
        parts.append(f"### {number}. {title}\n\n{prose}\n\n```{LANGUAGE.get(stage, '')}\n{texts[stage]}\n```\n")
    parts.append(
        "Later calls with such arguments run the guards, the transformed code and the plan, nothing else. A training step has\n"
        "two plans, cut from one joint graph (`kiln/graph/autograd`), behind one autograd node (`csrc/executor/region.cpp`).\n"
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
