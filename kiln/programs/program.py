"""An exported program: one whole graph, its parameters, and what its caller must know.

    program = kiln.export(model, (x,))
    program(x)                      runs it, with eager's kernels
    print(program.text())

        program Net
            parameter fc.weight: f32[8, 16]
            argument x: f32[batch, 16]
            1 <= batch <= 64
            returns dict(logits=output 0)

        graph(%0: f32[8, 16] "fc.weight", %1: f32[batch, 16] "x"):
            ...

Its graph is functional; mutations are writes at its end. A program computes without autograd, whatever the caller's
grad mode: gradients are exported with `training=True`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, cast, final

import torch

from kiln.graph.ir.fx_view import fx_view
from kiln.graph.ir.graph import Alias, Graph
from kiln.graph.ir.interpret import GraphRun, RuntimeValue, interpret
from kiln.graph.ir.text import graph_text
from kiln.programs.analysis import ProgramCost, analyze_graph
from kiln.programs.call.errors import BadExportArgument, CompilerNotLoaded
from kiln.programs.call.interface import CallInterface
from kiln.programs.call.shapes import ShapeRules, Values
from kiln.programs.call.signature import ProgramSignature
from kiln.programs.file_writer import save_program
from kiln.programs.onnx_file import save_onnx
from kiln.programs.text import head
from kiln.programs.torch_export import (
    example_arguments,
    plain_module,
    signature_of_exported,
    to_exported_program,
    wanted_sizes,
)
from kiln.support.options import Options
from kiln.support.records import dataclass
from kiln.symbolic import Expr, Int, evaluate, symbol
from kiln.tensor.spec import ScalarSpec, TensorSpec
from kiln.tensor.strided_view import strided_view

if TYPE_CHECKING:
    from kiln.programs.static.library import StaticLibrary
    from kiln.programs.torch_export import ExportedProgram

Level = Literal["torch", "core", "prims"]
LEVELS: tuple[Level, ...] = ("torch", "core", "prims")
Numerics = Literal["fast", "strict"]
NUMERICS: tuple[Numerics, ...] = ("fast", "strict")


@final
@dataclass(frozen=True, slots=True)
class Compiler:
    """What a program needs the compiler for: `package_program`, `write_static_library`, `export_program`."""

    package: Callable[..., str]
    static_library: Callable[..., StaticLibrary]
    capture: Callable[..., Program]
    read_options: Callable[..., Options]


COMPILERS: list[Compiler] = []
"""Registered by `kiln.api`: a program loads and runs without the compiler."""


def loaded_compiler(work: str) -> Compiler:
    if not COMPILERS:
        raise CompilerNotLoaded(work=work)
    return COMPILERS[-1]


@final
@dataclass
class Program:
    """Made by `kiln.export` and `kiln.load_program`.

    `state` has every tensor that the program carries, by name; `tied` are further names of the same tensors.
    `torch_module` is the graph of torch calls, in the process that exported.
    """

    name: str
    graph: Graph
    signature: ProgramSignature
    rules: ShapeRules
    state: dict[str, torch.Tensor]
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    level: Level = "core"
    torch_module: torch.fx.GraphModule | None = None

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run it. Raises WrongProgramInput before anything is computed."""
        interface = self.interface
        leaves = interface.leaves(args, kwargs)
        bound = interface.bind(leaves)
        states = [self.state[state.name] for state in self.signature.states]
        inputs = cast(list[RuntimeValue], interface.inputs(states, leaves, bound))
        with torch.no_grad():
            run = interpret(self.graph, inputs, bound, self.constants)
            for number, contents in run.written:
                cast(torch.Tensor, inputs[number]).copy_(contents)
            outputs = outputs_of(self.graph, inputs, run)
        return interface.results(leaves, states, outputs, lambda size: evaluate(size, run.symbols))

    def check_shapes(self, *args: object, **kwargs: object) -> dict[str, int]:
        """The sizes that the symbols stand for in this call; nothing runs.

        Raises:
            WrongProgramInput: names the argument, the size, and the constraint with the line that needs it.
        """
        return self.interface.check_shapes(args, kwargs)

    @cached_property
    def interface(self) -> CallInterface:
        """How arguments become inputs of the graph, and its outputs the results."""
        return interface_of(self.graph, self.signature, self.rules)

    @property
    def constraints(self) -> list[str]:
        """What the sizes of the arguments must satisfy, a line each."""
        return self.rules.lines()

    @property
    def mutated(self) -> list[str]:
        """The names of parameters, buffers and arguments that a call changes."""
        return [str(write.target.attrs["name"]) for write in self.graph.writes]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and persistent buffers under the names that the module's `state_dict` has."""
        hidden = {state.name for state in self.signature.states if not state.persistent}
        found = {name: tensor for name, tensor in self.state.items() if name not in hidden}
        return {**found, **{name: self.state[of] for name, of in self.tied.items()}}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program to a file, which `kiln.load_program` reads. Raises NotSavable.

        The torch-level graph stays behind: its calls are Python objects.
        """
        save_program(self, path)

    def package(
        self,
        path: str | os.PathLike[str],
        target: str = "cpu",
        *,
        key: bytes | None = None,
        options: Mapping[str, object] | None = None,
    ) -> str:
        """Compile the program and write a file that `kiln.load` runs without a compiler.

        Args:
            path: the file.
            target: "cpu" (this machine), "cpu:x86-64-v3" (all machines of this level; also v2, v4), "cuda:sm_90".
            key: a secret with which the package is signed.
            options: as `kiln.compile` takes them.

        Returns:
            The digest of the package, with which `kiln.load` can be sure to load this one.

        Raises:
            KilnError: it cannot be compiled, or holds what no file holds.
        """
        compiler = loaded_compiler("package a program")
        return compiler.package(self, path, target, key, compiler.read_options(None, options, None))

    def static_library(
        self,
        path: str | os.PathLike[str],
        header: str | os.PathLike[str] | None = None,
        target: str = "cpu",
        *,
        weights: Literal["embedded", "mapped"] = "embedded",
        options: Mapping[str, object] | None = None,
    ) -> StaticLibrary:
        """Compile the program into a static library with a C header, which needs libc and libm, but not libtorch.

        Args:
            path: the library, `libnet.a`; its functions are `net_plan`, `net_run` and `net_status`.
            header: the header; by default beside the library, with the suffix .h.
            target: "cpu" (this machine), "cpu:x86-64-v3" (also v2, v4), "cpu:aarch64".
            weights: in the library, or in a file beside it (suffix .weights) that the caller maps.
            options: as `kiln.compile` takes them.

        Returns:
            The size of code, weights and working memory.

        Raises:
            NoStaticLibrary: names the operators without a kernel, and the user's lines.
            KilnError: it cannot be compiled.
        """
        compiler = loaded_compiler("make a static library")
        read = compiler.read_options(None, options, None)
        return compiler.static_library(self, path, header, target, weights, read)

    def save_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the program as an ONNX model (opset 18), with the same names and free sizes; needs no other package.

        Weights of 2 GB or more go to a file `<path>.data` beside it. Raises NoOnnxForm.
        """
        save_onnx(self, path)

    def to_torch_export(self) -> ExportedProgram:
        """The program as torch's own tools take it: `torch.export.save`, `torch.onnx.export`, `run_decompositions`.

        Raises NoTorchExport.
        """
        return to_exported_program(self)

    @staticmethod
    def from_torch_export(exported: ExportedProgram) -> Program:
        """The program that torch has exported; its graph is captured again, with its symbolic sizes.

        Raises:
            NoTorchExport: it takes numbers that a call may change.
            KilnError: what `kiln.export` raises.
        """
        capture = loaded_compiler("capture an exported program").capture
        args = example_arguments(exported)
        program = capture(plain_module(exported), args, dynamic_shapes=wanted_sizes(exported, args))
        signature = signature_of_exported(exported, program.signature)
        return replace(program, name="exported", signature=signature, torch_module=None)

    @cached_property
    def cost(self) -> ProgramCost:
        """What a call costs, as formulas in the symbols."""
        least = {symbol(within.name): within.low for within in self.rules.ranges}
        return replace(analyze_graph(self.graph, least), constraints=tuple(self.constraints))

    def flops(self) -> Int:
        """Arithmetic operations of a call, as a formula in the symbols; `cost.uncounted` names what it leaves out."""
        return self.cost.flops

    def bytes(self) -> Int:
        """Bytes that its ops read and write, each on its own, as a formula in the symbols."""
        return self.cost.bytes

    def peak_memory(self) -> Int:
        """Bytes that live at once when its ops run in order, parameters included, as a formula in the symbols.

        Scratch memory inside a library call, such as that of a convolution, is not counted.
        """
        return self.cost.peak_memory

    # Forms.

    @cached_property
    def core_module(self) -> torch.fx.GraphModule:
        """The graph as calls of ATen overloads; new contents of written inputs follow the outputs."""
        return fx_view(self.graph, self.constants)

    @property
    def graph_module(self) -> torch.fx.GraphModule:
        """The graph as `torch.fx` at the program's level: torch calls, or ATen overloads."""
        return module_at(self, self.level)

    def text(self, level: Level | None = None) -> str:
        """Inputs, constraints and results, then the graph at a level (default: the program's)."""
        shown = level or self.level
        if shown not in LEVELS:
            raise BadExportArgument(name="level", value=shown, allowed=" or ".join(map(repr, LEVELS)))
        body = graph_text(self.graph) if shown == "prims" else str(module_at(self, shown).graph)
        return "\n".join(
            [
                f"program {self.name}",
                *[f"    {line}" for line in head(self.graph, self.signature, self.rules)],
                "",
                body,
            ]
        )

    def __str__(self) -> str:
        return self.text("prims")


def module_at(program: Program, level: Level) -> torch.fx.GraphModule:
    """The torch calls, or the ATen overloads. Raises BadExportArgument."""
    if level != "torch":
        return program.core_module
    if program.torch_module is None:
        allowed = "'core' or 'prims': a loaded program has no torch calls"
        raise BadExportArgument(name="level", value=level, allowed=allowed)
    return program.torch_module


def interface_of(graph: Graph, signature: ProgramSignature, rules: ShapeRules) -> CallInterface:
    numbers = {node: number for number, node in enumerate(graph.inputs)}
    shared = [output.alias.index for output in graph.outputs if output.alias and output.alias.of == "input"]
    return CallInterface(
        signature,
        rules,
        tuple([str(node.attrs["name"]) for node in graph.inputs]),
        tuple([cast(TensorSpec | ScalarSpec, node.spec) for node in graph.inputs]),
        tuple(sorted({numbers[write.target] for write in graph.writes})),
        tuple(sorted(set(shared))),
    )


def outputs_of(graph: Graph, inputs: Sequence[RuntimeValue], run: GraphRun) -> list[RuntimeValue]:
    """The outputs, those that share memory rebuilt as views."""
    made: list[RuntimeValue] = []
    for output, value in zip(graph.outputs, run.outputs, strict=True):
        alias = output.alias
        if alias is None:
            made.append(value)
            continue
        owners, owner = (
            (inputs, graph.inputs) if alias.of == "input" else (made, [each.value for each in graph.outputs])
        )
        made.append(rebuilt_view(alias, owners[alias.index], owner[alias.index].tensor, run))
    return made


def rebuilt_view(alias: Alias, base: RuntimeValue, spec: TensorSpec, run: GraphRun) -> RuntimeValue:
    """The output that is, or views, `base`, which the graph knows as `spec`; it may be at another offset."""
    if alias.view is None:
        return base
    assert isinstance(base, torch.Tensor)
    sizes, strides = numbers(alias.view.sizes, run.symbols), numbers(alias.view.strides, run.symbols)
    offset, first = numbers((alias.view.offset, spec.offset), run.symbols)
    itemsize = alias.view.dtype.itemsize
    start = (base.storage_offset() - first) * base.element_size() // itemsize
    return strided_view(base, alias.view.dtype, sizes, strides, start + offset)


def numbers(values: Sequence[Int], bound: Values) -> list[int]:
    return [evaluate(value, bound) if isinstance(value, Expr) else value for value in values]
