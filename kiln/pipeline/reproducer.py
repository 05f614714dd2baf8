"""Writes a script that shows again how a region differs from eager: `python kiln_reproducers/Net.forward_1.py`.

The script has the torch program, the inputs, the graph, the sources of its kernels and the environment; it needs
nothing but Kiln, and exits with status 1 while either the program or the graph differs. Small inputs are written as
values; large ones as seeds if random numbers show the difference too, else they lie beside the script.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import final

import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.text import graph_text
from kiln.pipeline.compile_key import WITHOUT_EFFECT
from kiln.pipeline.reproduce import Constants, graph_plan, made
from kiln.runtime.guards.reference import path_of
from kiln.support.options import Options
from kiln.support.records import dataclass

FOLDER = "kiln_reproducers"
FEW = 64
"""Elements of a tensor that is written as values."""

NOT_REPRODUCED = WITHOUT_EFFECT | {"verify"}
"""Options that the script does not set."""

SCRIPT = '''"""A region of `{name}` that Kiln compiles to something else than eager.

{difference}

{environment}
"""

import sys
from math import inf, nan

import torch
{imports}
import kiln
from kiln.pipeline.reproduce import graph_difference, made, program_difference

infj, nanj = complex(0, inf), complex(0, nan)

OPTIONS = {options}

INPUTS = [
{inputs}
]
CONSTANTS = {{
{constants}
}}
PLACES = {places}

{program}

GRAPH = r\'\'\'
{graph}
\'\'\'

if __name__ == "__main__":
    options = {{**OPTIONS, "cache": False}}
    found = program_difference(program, kiln.compile(program, options=options), [INPUTS[i] for i in PLACES])
    print("program:", found or "as eager")
    inner = graph_difference(GRAPH.strip(), INPUTS, OPTIONS, CONSTANTS)
    print("graph:", inner or "as its interpreter")
    sys.exit(bool(found or inner))

KERNELS = r\'\'\'
{kernels}
\'\'\'
'''


@final
@dataclass(frozen=True)
class Reproducer:
    """What is known of a region while it is compiled. `places`: the region's input of each input of `module`."""

    name: str
    graph: Graph
    module: torch.fx.GraphModule
    places: Sequence[int | None]
    constants: Constants
    options: Options

    def write(
        self, inputs: Sequence[object], difference: str, root: Path | None, still: Callable[[Sequence[object]], bool]
    ) -> Path:
        """The path of the script. `still`: whether other inputs show a difference too."""
        path = new_file(root, self.name)
        try:
            path.write_text(self.script(path, inputs, difference, still))
        except BaseException:
            path.unlink()
            raise
        return path

    def script(
        self, path: Path, inputs: Sequence[object], difference: str, still: Callable[[Sequence[object]], bool]
    ) -> str:
        texts = InputTexts(path)
        rows = [texts.seeded(value, number) for number, value in enumerate(inputs)]
        if texts.large and not still(texts.made):
            rows = [texts.stored(value, f"input_{number}") for number, value in enumerate(inputs)]
        imports, program = program_text(self.module)
        return SCRIPT.format(
            name=self.name,
            difference=difference,
            environment=environment(),
            imports="".join(f"{line}\n" for line in imports),
            options=repr(changed_options(self.options)),
            inputs="\n".join(f"    {row}," for row in rows),
            constants="\n".join(f"    {key!r}: {texts.stored(v, key)}," for key, v in self.constants.items()),
            program=program,
            graph=graph_text(self.graph, origins=False),
            places=list(self.places),
            kernels="\n".join(kernel.source for kernel in graph_plan(self.graph, self.options).kernels),
        )


@final
class InputTexts:
    """Inputs as Python expressions, and what these give; `large`: whether one was too large to write its values."""

    def __init__(self, script: Path) -> None:
        self.script = script
        self.large = False
        self.made: list[object] = []

    def seeded(self, value: object, number: int) -> str:
        if not isinstance(value, torch.Tensor):
            self.made.append(value)
            return repr(value)
        layout = value.dtype, tuple(value.shape), tuple(value.stride()), str(value.device)
        content: dict[str, object] = {}
        if value.numel() <= FEW:
            content["values"] = value.detach().flatten().tolist()
        else:
            self.large = True
            content["seed"] = number
            if not (value.is_floating_point() or value.is_complex()):
                content |= {"low": int(value.min()), "high": int(value.max()) + 1}
        if value.requires_grad:
            content["requires_grad"] = True
        self.made.append(made(*layout, **content))  # type: ignore[arg-type]
        arguments = [*map(repr, layout), *[f"{name}={item!r}" for name, item in content.items()]]
        return f"made({', '.join(arguments)})"

    def stored(self, value: object, name: str) -> str:
        """Small values as text, others in a file."""
        if not isinstance(value, torch.Tensor) or value.numel() <= FEW:
            return self.seeded(value, 0)
        file = self.script.with_name(f"{self.script.stem}_{name.replace('/', '_')}.pt")
        torch.save(value.detach(), file)
        grad = ".requires_grad_()" if value.requires_grad else ""
        return f"torch.load({str(file)!r}){grad}"


def new_file(root: Path | None, name: str) -> Path:
    """A script with the next free number, in the working directory or else a temporary folder."""
    try:
        return numbered_file((root or Path.cwd()) / FOLDER, name)
    except OSError:
        return numbered_file(Path(tempfile.mkdtemp(prefix="kiln_")), name)


def numbered_file(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = folder / f"{name}_{number}.py"
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            number += 1
            continue
        return path


def program_text(module: torch.fx.GraphModule) -> tuple[list[str], str]:
    """Imports, and a function `program` with the calls of the module."""
    code = module.graph.python_code("self")
    imports = [line for name, value in code.globals.items() if (line := import_of(name, value))]
    buffers = dict(module.named_buffers())
    lines = ["class Program(torch.nn.Module):", "    def __init__(self):", "        super().__init__()"]
    for name, value in buffers.items():
        row = f"made({value.dtype}, {tuple(value.shape)}, {tuple(value.stride())}, {str(value.device)!r}"
        lines.append(f"        self.register_buffer({name!r}, {row}, values={value.flatten().tolist()}))")
    body = [f"    {line}" for line in code.src.strip().splitlines()]
    return imports, "\n".join([*lines, "", *body, "", "", "program = Program()"])


def import_of(name: str, value: object) -> str:
    """The import of a global that the code of a module uses."""
    if name in ("torch", "NoneType") or name.endswith("pytree"):
        return ""
    path = path_of(value)
    if path:
        module, _, attribute = path.partition(":")
        head, _, rest = attribute.partition(".")
        if not attribute:
            return f"import {module} as {name}"
        line = f"from {module} import {head} as {name}"
        return line if not rest else f"{line}\n{name} = {name}.{rest}"
    return f"{name} = {value!r}"


def environment() -> str:
    packages = f"Python {platform.python_version()}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return "\n".join([packages, f"{platform.platform()}, {platform.processor() or platform.machine()}", *gpus])


def changed_options(options: Options) -> Mapping[str, object]:
    """The options that differ from their defaults, and the random numbers of a comparison."""
    defaults, given = asdict(Options()), asdict(replace(options, random="eager"))
    return {name: value for name, value in given.items() if value != defaults[name] and name not in NOT_REPRODUCED}
