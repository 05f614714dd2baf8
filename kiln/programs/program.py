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
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, cast, final

import torch

from kiln.graph.ir.fx_view import fx_view
from kiln.graph.ir.graph import Alias, Graph
from kiln.graph.ir.interpret import GraphRun, RuntimeValue, interpret
from kiln.graph.ir.text import graph_text
from kiln.programs.analysis import ProgramCost, analyze_graph
from kiln.programs.errors import BadExportArgument, WrongProgramInput
from kiln.programs.file_writer import save_program
from kiln.programs.shapes import ShapeRules, Values, in_layout
from kiln.programs.signature import ProgramSignature, ResultLeaf
from kiln.programs.text import head
from kiln.symbolic import Expr, Int, evaluate, symbol
from kiln.tensor.spec import ScalarSpec, TensorSpec

Level = Literal["torch", "core", "prims"]
LEVELS: tuple[Level, ...] = ("torch", "core", "prims")


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
        leaves = self.signature.leaves_of(args, kwargs)
        bound = self._bind(leaves)
        inputs = self._inputs(leaves, bound)
        with torch.no_grad():
            run = interpret(self.graph, inputs, bound, self.constants)
            for number, contents in run.written:
                cast(torch.Tensor, inputs[number]).copy_(contents)
            outputs = self._outputs(inputs, run)
        results = [self._result(leaf, leaves, outputs, run) for leaf in self.signature.results]
        return self.signature.out_tree.build(results)

    def check_shapes(self, *args: object, **kwargs: object) -> dict[str, int]:
        """The sizes that the symbols stand for in this call; nothing runs.

        Raises:
            WrongProgramInput: names the argument, the size, and the constraint with the line that needs it.
        """
        bound = self._bind(self.signature.leaves_of(args, kwargs))
        return {symbol.name: number for symbol, number in bound.items()}

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
        """Bytes that live at once when its ops run in order, parameters included, as a formula in the symbols."""
        return self.cost.peak_memory

    # Forms.

    @cached_property
    def core_module(self) -> torch.fx.GraphModule:
        """The graph as calls of ATen overloads; new contents of written inputs follow the outputs."""
        return fx_view(self.graph, self.constants)

    @property
    def graph_module(self) -> torch.fx.GraphModule:
        """The graph as `torch.fx` at the program's level: torch calls, or ATen overloads."""
        return self._module(self.level)

    def _module(self, level: Level) -> torch.fx.GraphModule:
        if level != "torch":
            return self.core_module
        if self.torch_module is None:
            allowed = "'core' or 'prims': a loaded program has no torch calls"
            raise BadExportArgument(name="level", value=level, allowed=allowed)
        return self.torch_module

    def text(self, level: Level | None = None) -> str:
        """Inputs, constraints and results, then the graph at a level (default: the program's)."""
        shown = level or self.level
        if shown not in LEVELS:
            raise BadExportArgument(name="level", value=shown, allowed=" or ".join(map(repr, LEVELS)))
        body = graph_text(self.graph) if shown == "prims" else str(self._module(shown).graph)
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

    # Running.

    def _bind(self, leaves: Sequence[object]) -> Values:
        names, specs, values = [], [], []
        for leaf, value in zip(self.signature.arguments, leaves, strict=True):
            if leaf.number is not None:
                spec = self.graph.inputs[leaf.number].spec
                assert isinstance(spec, TensorSpec | ScalarSpec)
                names.append(leaf.name)
                specs.append(spec)
                values.append(value)
            elif not leaf.unused and not same_constant(leaf.value, value):
                problem = f"`{leaf.name}` is {value!r}"
                raise WrongProgramInput(problem=problem, reason=f"it was exported with {leaf.value!r}, which is fixed")
        return self.rules.bind(names, specs, values)

    def _inputs(self, leaves: Sequence[object], bound: Values) -> list[RuntimeValue]:
        inputs: list[RuntimeValue] = [self.state[state.name] for state in self.signature.states]
        inputs += [None] * (len(self.graph.inputs) - len(inputs))
        written = {write.target for write in self.graph.writes}
        for leaf, value in zip(self.signature.arguments, leaves, strict=True):
            if leaf.number is None:
                continue
            node = self.graph.inputs[leaf.number]
            if isinstance(value, torch.Tensor) and isinstance(node.spec, TensorSpec):
                fitted = in_layout(value, node.spec, bound)
                if fitted is not value and (node in written or is_shared(self.graph, leaf.number)):
                    problem = f"`{leaf.name}` has the strides {tuple(value.stride())}"
                    reason = f"the program changes or returns its memory, and was exported with {node.spec}"
                    raise WrongProgramInput(problem=problem, reason=reason)
                value = fitted
            inputs[leaf.number] = cast(RuntimeValue, value)
        self._refuse_overlap(inputs)
        return inputs

    def _refuse_overlap(self, inputs: Sequence[RuntimeValue]) -> None:
        """An argument that is written has its memory for itself: otherwise others would change with it."""
        numbers = {node: number for number, node in enumerate(self.graph.inputs)}
        first = len(self.signature.states)
        for write in self.graph.writes:
            target = inputs[numbers[write.target]]
            for number, other in enumerate(inputs):
                same = number == numbers[write.target] or max(number, numbers[write.target]) < first
                if same or not isinstance(other, torch.Tensor) or not isinstance(target, torch.Tensor):
                    continue
                if other.numel() and other.untyped_storage().data_ptr() == target.untyped_storage().data_ptr():
                    names = [str(self.graph.inputs[at].attrs["name"]) for at in (numbers[write.target], number)]
                    problem = f"`{names[0]}` and `{names[1]}` share memory"
                    raise WrongProgramInput(problem=problem, reason=f"the program changes `{names[0]}`")

    def _outputs(self, inputs: Sequence[RuntimeValue], run: GraphRun) -> list[RuntimeValue]:
        """The outputs, those that share memory rebuilt as views."""
        made: list[RuntimeValue] = []
        for output, value in zip(self.graph.outputs, run.outputs, strict=True):
            alias = output.alias
            if alias is None:
                made.append(value)
                continue
            owners, owner = (
                (inputs, self.graph.inputs)
                if alias.of == "input"
                else (made, [each.value for each in self.graph.outputs])
            )
            made.append(rebuilt_view(alias, owners[alias.index], owner[alias.index].tensor, run))
        return made

    def _result(self, leaf: ResultLeaf, leaves: Sequence[object], outputs: Sequence[object], run: GraphRun) -> object:
        match leaf.kind:
            case "output":
                return outputs[leaf.number]
            case "argument":
                return leaves[leaf.number]
            case "state":
                return self.state[self.signature.states[leaf.number].name]
            case "size":
                return evaluate(cast(Int, leaf.value), run.symbols)
        return leaf.value


def is_shared(graph: Graph, number: int) -> bool:
    """Whether a result has the memory of a graph input."""
    aliases = [output.alias for output in graph.outputs if output.alias is not None]
    return any(alias.of == "input" and alias.index == number for alias in aliases)


def rebuilt_view(alias: Alias, base: RuntimeValue, spec: TensorSpec, run: GraphRun) -> RuntimeValue:
    """The output that is, or views, `base`, which the graph knows as `spec`; it may be at another offset."""
    if alias.view is None:
        return base
    assert isinstance(base, torch.Tensor)
    sizes, strides = numbers(alias.view.sizes, run.symbols), numbers(alias.view.strides, run.symbols)
    offset, first = numbers((alias.view.offset, spec.offset), run.symbols)
    return base.as_strided(sizes, strides, base.storage_offset() + offset - first)


def numbers(values: Sequence[Int], bound: Values) -> list[int]:
    return [evaluate(value, bound) if isinstance(value, Expr) else value for value in values]


def same_constant(expected: object, found: object) -> bool:
    """Equal in type and value; NaN equals NaN."""
    if type(expected) is not type(found):
        return False
    return expected is found or bool(expected == found) or (expected != expected and found != found)
