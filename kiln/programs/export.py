"""`kiln.export`: a call of a module or function as one whole program.

    kiln.export(model, (x,), dynamic_shapes={"x": {0: kiln.Dim("batch")}})   ->   Program

The graph is recorded once (`whole.py`); here its inputs get their names and order, and its results their places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

import torch

from kiln.graph.ir.graph import Graph, Write
from kiln.graph.ir.node import Attr, Node
from kiln.graph.ir.rewrite import rebuilt, symbols_in, with_inputs
from kiln.graph.prims.rows import PRIMS
from kiln.graph.trace.constants import spec_of_real
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.inputs import InputRecord
from kiln.programs.call.errors import BadExportArgument, UnknownResult
from kiln.programs.call.shapes import rules_of
from kiln.programs.call.signature import CONSTANTS, STATE_KINDS, ArgumentLeaf, ProgramSignature, ResultLeaf, StateInput
from kiln.programs.call.tree import LEAF, Tree, flatten
from kiln.programs.dims import DimTable
from kiln.programs.dynamic_shapes import dim_table, examples_in
from kiln.programs.naming import CallNames, StateNames, call_names, state_names
from kiln.programs.number_results import Result, with_numbers
from kiln.programs.output_mark import OutputMark
from kiln.programs.program import LEVELS, NUMERICS, Level, Numerics, Program
from kiln.programs.single_rows import with_more_rows
from kiln.programs.training import training_graph
from kiln.programs.whole import Kinds, WholeCapture, capture_whole, name_of, user_signature
from kiln.support.errors import KilnError
from kiln.support.records import dataclass
from kiln.symbolic.node import from_sym
from kiln.tensor.spec import Spec, TensorSpec


def export_program(
    target: object,
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
    *,
    dynamic_shapes: object = None,
    level: Level = "core",
    training: bool = False,
    numerics: Numerics = "fast",
) -> Program:
    """What `kiln.export` does; see there."""
    if level not in LEVELS:
        raise BadExportArgument(name="level", value=level, allowed=" or ".join(map(repr, LEVELS)))
    if numerics not in NUMERICS:
        raise BadExportArgument(name="numerics", value=numerics, allowed=" or ".join(map(repr, NUMERICS)))
    kinds = Kinds(training, level == "torch", numerics == "strict")
    if not isinstance(args, tuple | list):
        raise BadExportArgument(name="args", value=args, allowed="a tuple of positional arguments")
    signature, states = user_signature(target), state_names(target)
    taken = set(states.states)
    call = call_names(signature, tuple(args), kwargs or {}, taken)
    examples = examples_in(dynamic_shapes)
    calls = examples.calls if examples is not None else []
    others = [call_names(signature, *example, taken) for example in calls]
    table = dim_table(call, None if examples is not None else dynamic_shapes, others)
    whole = capture_whole(target, *call.arguments(), table, kinds)
    larger = with_more_rows(call, table, whole)
    program = None if larger is None else program_of_more_rows(target, call, *larger, level, kinds)
    if program is None:
        check_dims(table, whole)
        program = Assembly(target, call, states, whole).program(level, training)
    for example in calls:
        program.check_shapes(*example[0], **example[1])
    return program


def program_of_more_rows(
    target: object, example: CallNames, leaves: list[object], table: DimTable, level: Level, kinds: Kinds
) -> Program | None:
    """The program of a call with more rows than `example`, if there is one that takes that, too."""
    call = replace(example, leaves=leaves)
    try:
        whole = capture_whole(target, *call.arguments(), table, kinds)
        check_dims(table, whole)
        program = Assembly(target, call, state_names(target), whole).program(level, kinds.training)
        args, kwargs = example.arguments()
        program.check_shapes(*args, **kwargs)
    except KilnError:
        return None
    return program


def check_dims(table: DimTable, whole: WholeCapture) -> None:
    """Raise where the program fixes a size that was asked to be dynamic."""
    table.require_open(whole.trace.env)
    for record in whole.trace.inputs:
        if record.real is not None and isinstance(record.spec, TensorSpec):
            table.require_dynamic(whole.trace.env, record.real, record.spec.sizes)


@final
@dataclass(frozen=True, slots=True)
class CarriedInput:
    """A state, and its input of the graph; `node` is None if the graph does not read it."""

    state: StateInput
    spec: Spec
    node: Node | None


@final
class Assembly:
    """Makes a program of a captured call."""

    def __init__(self, target: object, call: CallNames, states: StateNames, whole: WholeCapture) -> None:
        self.function = name_of(target)
        self.call, self.states, self.whole = call, states, whole
        self.places = {id(leaf): number for number, leaf in enumerate(call.leaves) if isinstance(leaf, torch.Tensor)}
        self.records = {id(record.real): record for record in whole.trace.inputs if record.real is not None}
        self.returned: dict[str, torch.Tensor] = {}
        """Carried tensors that are results, by name."""
        self.numbers: list[Result] = []
        """Floats and truths among the results, which become outputs of the graph."""

    def program(self, level: Level, training: bool) -> Program:
        trace, call = self.whole.trace, self.call
        out_tree, results = self.results()
        if self.numbers and training:
            raise UnknownResult(function=self.function, type="float or truth beside gradients")
        graph = with_numbers(trace.graph, self.numbers, self.whole.emit, self.function)
        gradients: tuple[str, ...] = ()
        if training:
            made = training_graph(self.whole.joint, results, self.function)
            graph = made.graph
            gradients = tuple([self.name(trace.used_inputs[number]) for number in made.inputs])
            results += [ResultLeaf("output", made.first + number) for number in range(len(gradients))]
            out_tree = Tree(tuple, (out_tree, Tree(dict, (LEAF,) * len(gradients), gradients)))
        stored = {self.states.constant("buffer", old).name: (old, value) for old, value in self.whole.buffers}
        self.returned.update({name: old for name, (old, _) in stored.items()})
        carried = self.carried(graph)
        order = [carried_input.state.name for carried_input in carried]
        results = [replace(leaf, number=order.index(str(leaf.value)), value=None) if leaf.kind == "state" else leaf
                   for leaf in results]  # fmt: skip
        arguments = self.arguments(len(carried))
        graph = self.with_inputs(graph, carried, arguments, {name: value for name, (_, value) in stored.items()})
        used = frozenset().union(*[symbols_in(node.spec) for node in graph.inputs])
        states = tuple([carried_input.state for carried_input in carried])
        signature = ProgramSignature(states, arguments, tuple(results), call.parameters, call.tree, out_tree, gradients)
        keys = [node.attrs["key"] for node in graph.nodes if node.op.name == "constant_tensor"]
        return Program(
            self.function,
            graph,
            signature,
            rules_of(trace.env, used),
            dict(self.states.tensors),
            {key: trace.constants[key] for key in keys},
            dict(self.states.tied),
            level,
            self.whole.torch_module,
        )

    # Results.

    def results(self) -> tuple[Tree, list[ResultLeaf]]:
        tree, leaves = flatten(self.whole.result)
        return tree, [self.result(leaf) for leaf in leaves]

    def result(self, leaf: object) -> ResultLeaf:
        if isinstance(leaf, OutputMark):
            return ResultLeaf("output", leaf.number)
        if isinstance(leaf, FakeTensor):
            leaf = next(record.real for record in self.records.values() if record.fake is leaf)
        if isinstance(leaf, torch.Tensor):
            place = self.places.get(id(leaf))
            if place is not None:
                return ResultLeaf("argument", place)
            record = self.records.get(id(leaf))
            state = self.states.constant(record.name if record is not None else "constant", leaf)
            self.returned[state.name] = leaf
            return ResultLeaf("state", value=state.name)
        if isinstance(leaf, torch.SymInt):
            return ResultLeaf("size", value=from_sym(leaf))
        if isinstance(leaf, torch.SymFloat | torch.SymBool):
            self.numbers.append(leaf.node.value)
            return ResultLeaf("number", len(self.whole.trace.graph.outputs) + len(self.numbers) - 1)
        if type(leaf) not in CONSTANTS:
            raise UnknownResult(function=self.function, type=type(leaf).__qualname__)
        return ResultLeaf("constant", value=leaf)

    # Inputs.

    def name(self, record: InputRecord) -> str:
        """The name of an input of the recording."""
        assert record.real is not None
        place = self.places.get(id(record.real))
        return self.call.names[place] if place is not None else self.states.constant(record.name, record.real).name

    def carried(self, graph: Graph) -> list[CarriedInput]:
        """The states that the graph reads or the program returns: parameters, buffers, constants."""
        found: dict[str, CarriedInput] = {}
        for record in self.whole.trace.used_inputs:
            if record.real is not None and id(record.real) not in self.places:
                state = self.states.constant(record.name, record.real)
                found[state.name] = CarriedInput(state, record.spec, record.node)
        for name, tensor in self.returned.items():
            state = self.states.states[id(tensor)]
            found.setdefault(name, CarriedInput(state, spec_of_real(tensor), None))
        return sorted(found.values(), key=lambda each: STATE_KINDS.index(each.state.kind))

    def arguments(self, first: int) -> tuple[ArgumentLeaf, ...]:
        """The leaves of the arguments; recorded tensors are the graph's inputs from `first` on."""
        made: list[ArgumentLeaf] = []
        for name, leaf in zip(self.call.names, self.call.leaves, strict=True):
            if not isinstance(leaf, torch.Tensor):
                made.append(ArgumentLeaf(name, value=leaf))
            elif id(leaf) in self.records:
                made.append(ArgumentLeaf(name, first))
                first += 1
            else:
                made.append(ArgumentLeaf(name, unused=True))
        return tuple(made)

    def with_inputs(
        self,
        graph: Graph,
        carried: list[CarriedInput],
        arguments: Sequence[ArgumentLeaf],
        stored: Mapping[str, Node],
    ) -> Graph:
        """The graph with its inputs in order, under their names; `stored`: what buffers are at its end, by name."""
        rows = [(each.state.name, each.spec, each.node) for each in carried]
        for argument, leaf in zip(arguments, self.call.leaves, strict=True):
            if argument.number is not None:
                record = self.records[id(leaf)]
                rows.append((argument.name, record.spec, record.node))
        inputs = [
            Node(PRIMS["input"], (), {"index": number, "name": name}, spec)
            for number, (name, spec, _) in enumerate(rows)
        ]
        replaced = {old: new for (_, _, old), new in zip(rows, inputs, strict=True) if old is not None}
        positions = {old: number for number, (_, _, old) in enumerate(rows) if old is not None}
        numbers = {old: positions[node] for old, node in enumerate(graph.inputs)}
        nodes: list[Node] = []
        for node in graph.nodes:
            replaced[node] = with_inputs(node, tuple([replaced[value] for value in node.inputs]))
            nodes.append(replaced[node])
        made = rebuilt(graph, nodes, replaced)
        outputs = tuple([output.renumbered(numbers) for output in made.outputs])
        targets = {node: replaced[stored[node.attrs["name"]]] for node in inputs if node.attrs["name"] in stored}
        for target, value in targets.items():
            if value in inputs:  # which may be written before it is read
                attrs: dict[str, Attr] = {"strides": value.tensor.strides}
                targets[target] = Node(PRIMS["clone"], (value,), attrs, value.spec)
                nodes.append(targets[target])
        writes = [replace(write, target=replaced[write.target]) for write in made.writes]
        writes = [write for write in writes if write.target not in targets]
        writes += [Write(target, value) for target, value in targets.items()]
        return Graph(tuple(inputs), nodes, outputs, tuple(writes))
