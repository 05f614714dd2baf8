"""Programs as `torch.export.ExportedProgram`, and back.

    exported = program.to_torch_export()        torch.export.save, torch.onnx.export, run_decompositions take it
    program = Program.from_torch_export(exported)

One way, the graph is written as ATen calls, and torch's fake tensors say what each returns. The other way, the module
that torch makes of an exported program is exported by Kiln. torch.export is imported on first use: it loads torch's
compiler.
"""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, cast, final

import torch
from torch.fx.node import Argument as FxArgument
from torch.utils import _pytree as pytree

from kiln.graph.ir.fx_view import FxView
from kiln.programs.call.errors import NoTorchExport
from kiln.programs.call.interface import CallInterface
from kiln.programs.call.shapes import ShapeRules
from kiln.programs.call.signature import ArgumentLeaf, ProgramSignature, ResultLeaf
from kiln.programs.call.specs import bound_by
from kiln.programs.call.tree import Tree, flatten
from kiln.programs.dims import AnyDim, Dim
from kiln.programs.program_parts import ProgramParts
from kiln.programs.public_calls import public_results
from kiln.symbolic import Expr, FloorDiv, Int, Max, Min, Mod, Symbol, symbol
from kiln.tensor.spec import ScalarSpec, TensorSpec

if TYPE_CHECKING:
    from torch.export import ExportedProgram as ExportedProgram
    from torch.export.graph_signature import InputSpec, OutputSpec

FxNode = torch.fx.Node
PREFIXES = {"parameter": "p_", "buffer": "b_", "constant": "c_"}
CONSTANTS_OF_TORCH = (type(None), bool, int, float, str, torch.dtype, torch.device)
"""What torch keeps of an argument that is no tensor."""
MOST_TRIES = 20_000  # combinations of sizes
USUAL_SIZE, SPREAD = 7, 40
"""The first size that is tried for a symbol, so that few of its expressions are 0 or 1, and how many more."""
FUNCTIONS: Mapping[object, Callable[..., object]] = {min: torch.sym_min, max: torch.sym_max}
"""What an exported program calls instead of builtins."""


def to_exported_program(program: ProgramParts) -> ExportedProgram:
    """The same program for torch's tools. Raises NoTorchExport."""
    return Exporter(program).build()


def example_sizes(rules: ShapeRules, symbols: Sequence[Symbol]) -> dict[Symbol, int]:
    """Sizes that satisfy the rules: those of the call that was exported, if they are known, but 0 and 1, which are
    special. Raises NoTorchExport."""
    ends = {within.name: (within.low, within.high) for within in rules.ranges}
    known = {each.name: [each.example] for each in rules.ranges if each.example is not None and each.example > 1}
    choices = []
    for each in symbols:
        low, high = ends.get(each.name, (0, None))
        last = max(low, USUAL_SIZE) + SPREAD if high is None else min(high, low + USUAL_SIZE + SPREAD)
        first = min(max(low, USUAL_SIZE), last)
        choices.append([*known.get(each.name, ()), *range(first, last + 1), *range(low, first)])
    for sizes in itertools.islice(itertools.product(*choices), MOST_TRIES):
        found = dict(zip(symbols, sizes, strict=True))
        if all(constraint.relation.evaluate(found) for constraint in rules.constraints):
            return found
    raise NoTorchExport(problem="no sizes were found that satisfy its constraints, which torch needs as an example")


@final
class TorchSizes:
    """The sizes of a program as torch's symbols; `env` is its ShapeEnv."""

    def __init__(self, interface: CallInterface) -> None:
        shapes = import_module("torch.fx.experimental.symbolic_shapes")
        self.rules, self.env = interface.rules, shapes.ShapeEnv()
        self.symbols: dict[Symbol, torch.SymInt] = {}
        names = [found for spec in interface.specs for found in sorted(bound_by(spec), key=str)]
        for each, size in example_sizes(interface.rules, list(dict.fromkeys(names))).items():
            source = import_module("torch._dynamo.source").ConstantSource(each.name)
            made = self.env.create_symbol(
                size, source, dynamic_dim=shapes.DimDynamic.DYNAMIC, do_not_specialize_zero_one=True
            )
            self.symbols[each] = self.env.create_symintnode(made, hint=size, source=source)

    def number(self, value: Int) -> int | torch.SymInt:
        """A size as torch computes it."""
        match value:
            case int():
                return value
            case Symbol():
                return self.symbols[value]
            case FloorDiv() | Mod():
                dividend, divisor = self.number(value.dividend), self.number(value.divisor)
                if isinstance(value, FloorDiv):
                    return dividend // divisor
                return operator.mod(dividend, divisor)  # type: ignore[no-any-return]
            case Min() | Max():
                pick = torch.sym_min if isinstance(value, Min) else torch.sym_max
                first, *rest = [self.number(arg) for arg in value.args]
                for other in rest:
                    first = pick(first, other)
                return first
        total: int | torch.SymInt = 0
        for monomial, coefficient in value.terms:
            term: int | torch.SymInt = coefficient
            for atom in monomial:
                term = term * self.number(atom)
            total = total + term
        return total

    def range_constraints(self) -> dict[object, object]:
        """The ranges of torch's symbols, by SymPy symbol."""
        ends = {symbol(within.name): (within.low, within.high) for within in self.rules.ranges}
        made = dict(self.env.var_to_range)
        infinity = import_module("torch.utils._sympy.numbers").int_oo
        within = import_module("torch.utils._sympy.value_ranges").ValueRanges
        for each, number in self.symbols.items():
            low, high = ends.get(each, (0, None))
            made[number.node.expr] = within(low, infinity if high is None else high)
        return made

    def fake(self, spec: TensorSpec | ScalarSpec, mode: AbstractContextManager[object]) -> object:
        if isinstance(spec, ScalarSpec):
            return self.number(spec.value if spec.value is not None else 0)
        sizes = tuple([self.number(size) for size in spec.sizes])
        strides = tuple([self.number(stride) for stride in spec.strides])
        with mode:
            return torch.empty_strided(sizes, strides, dtype=spec.dtype, device=spec.device)


@final
class Exporter:
    """Writes one program as an ExportedProgram."""

    def __init__(self, program: ProgramParts) -> None:
        self.program, self.interface, self.signature = program, program.interface, program.interface.signature
        self.torch_export = import_module("torch.export.graph_signature")
        self.shapes = import_module("torch.fx.experimental.symbolic_shapes")
        self.sizes = TorchSizes(self.interface)
        self.mode = import_module("torch._subclasses.fake_tensor").FakeTensorMode(
            shape_env=self.sizes.env, allow_non_fake_inputs=False
        )
        self.dispatcher = import_module("torch._dispatch.python").enable_python_dispatcher
        """Without it, composite operators refuse symbols."""
        self.view = FxView(program.graph, program.constants, functional=True)
        self.root = torch.nn.Module()
        self.fx = torch.fx.Graph(self.root)  # type: ignore[arg-type]
        self.copies: dict[FxNode, FxNode] = {}
        self.places: dict[FxNode, int] = {}
        self.inputs: list[InputSpec] = []
        self.outputs: list[OutputSpec] = []
        self.lifted: dict[str, torch.Tensor] = {}

    def build(self) -> ExportedProgram:
        self.view.build()
        self.add_constraints()
        self.add_placeholders()
        self.copy_nodes()
        self.add_output()
        self.fx.lint()
        export = import_module("torch.export.exported_program")
        return export.ExportedProgram(  # type: ignore[no-any-return]
            self.root,
            self.fx,
            self.torch_export.ExportGraphSignature(self.inputs, self.outputs),
            self.state_dict(),
            self.sizes.range_constraints(),
            [self.whole_call()],
            None,
            self.constants(),
        )

    def add_constraints(self) -> None:
        """Assertions of what ranges cannot say."""
        for constraint in self.interface.rules.constraints:
            relation = constraint.relation
            compare = getattr(operator, relation.kind)
            holds = self.view.fx.call_function(compare, (self.view.sizes.number(relation.difference), 0))
            target = torch.ops.aten._assert_scalar.default
            self.view.fx.call_function(target, (holds, f"the program needs {relation}"))

    # Inputs.

    def add_placeholders(self) -> None:
        values = [self.view.values[node] for node in self.program.graph.inputs]
        olds = [value for value in values if isinstance(value, FxNode)]
        for old, state in zip(olds, self.signature.states, strict=False):
            self.add_state(old, state.name, state.kind, state.persistent)
        for name, module in self.view.root.named_children():
            self.root.add_module(name, module)
        for node in self.view.fx.nodes:
            if node.op == "get_attr" and not hasattr(self.root, node.target):
                name = f"lifted_{len(self.lifted)}"
                self.lifted[name] = self.view.root.get_buffer(node.target)
                self.copies[node] = self.placeholder("c_" + name, self.mode.from_tensor(self.lifted[name]))
                self.input("CONSTANT_TENSOR", self.copies[node], name)
        for leaf in self.signature.arguments:
            self.add_argument(leaf, None if leaf.number is None else olds[leaf.number])

    def placeholder(self, name: str, value: object) -> FxNode:
        made = self.fx.placeholder(name)
        made.target = made.name  # unique
        self.places[made] = len(self.places)
        made.meta["val"] = value
        return made

    def input(self, kind: str, node: FxNode, target: str | None = None, persistent: bool | None = None) -> None:
        arg = self.torch_export.TensorArgument(name=node.name)
        spec = self.torch_export.InputSpec(self.torch_export.InputKind[kind], arg, target, persistent=persistent)
        self.inputs.append(spec)

    def add_state(self, old: FxNode, name: str, kind: str, persistent: bool) -> None:
        real = self.program.state[name].detach()
        node = self.placeholder(PREFIXES[kind] + old.name, self.mode.from_tensor(real, static_shapes=True))
        self.copies[old] = node
        match kind:
            case "parameter":
                self.input("PARAMETER", node, name)
            case "buffer":
                self.input("BUFFER", node, name, persistent)
            case _:
                self.input("CONSTANT_TENSOR", node, name)

    def add_argument(self, leaf: ArgumentLeaf, old: FxNode | None) -> None:
        if leaf.unused:
            raise NoTorchExport(problem=f"the tensor `{leaf.name}` is not used, so its sizes are not known")
        kinds = self.torch_export
        name = old.name if old is not None else "unused"
        spec = None if leaf.number is None else self.interface.specs[leaf.number]
        node = self.placeholder(name, leaf.value if spec is None else self.sizes.fake(spec, self.mode))
        if old is not None:
            self.copies[old] = node
        if isinstance(spec, TensorSpec):
            self.input("USER_INPUT", node)
            return
        if spec is None and type(leaf.value) not in CONSTANTS_OF_TORCH:
            raise NoTorchExport(problem=f"its argument `{leaf.name}` is a {type(leaf.value).__name__}")
        arg = kinds.ConstantArgument(name=node.name, value=leaf.value)
        if isinstance(spec, ScalarSpec):
            if spec.kind is not int:
                raise NoTorchExport(problem=f"`{leaf.name}` is a {spec.kind.__name__} that a call may change")
            arg = kinds.SymIntArgument(name=node.name)
        self.inputs.append(kinds.InputSpec(kinds.InputKind.USER_INPUT, arg, None))

    # Nodes.

    def copy_nodes(self) -> None:
        """The calls, with what torch says that they return."""

        def called(target: Callable[..., object], *args: FxArgument, **kwargs: FxArgument) -> FxNode:
            made = self.fx.call_function(target, args, kwargs)
            self.run(made)
            return made

        def copied(value: FxArgument) -> FxArgument:
            return torch.fx.node.map_arg(value, lambda old: self.copies[old])

        for node in self.view.fx.nodes:
            if node.op == "placeholder" or node in self.copies:
                continue
            if node.op == "call_module":
                raise NoTorchExport(problem=f"its graph has a nested graph (`{node.target}`)")
            if results := public_results(node, called, copied):
                self.copies |= results
                continue
            self.copies[node] = self.fx.node_copy(node, lambda old: self.copies[old])
            self.run(self.copies[node])

    def run(self, node: FxNode) -> None:
        """Note what a node returns; a graph that is an attribute is itself. `unflatten` asks for modules."""
        node.meta["nn_module_stack"] = {"": ("", "torch.nn.Module")}
        if node.op != "call_function":
            return
        node.target = allowed(node.target)
        values = torch.fx.node.map_arg((node.args, node.kwargs), self.value)
        args, kwargs = values  # type: ignore[misc]
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            self.run_nested(node.target.__name__, args)
        assert callable(node.target)
        with self.mode, self.dispatcher(), torch.no_grad():
            node.meta["val"] = node.target(*args, **kwargs)
        if bindings := self.shapes.compute_unbacked_bindings(self.sizes.env, node.meta["val"]):
            node.meta["unbacked_bindings"] = bindings

    def value(self, node: FxNode) -> FxArgument:
        if node.op != "get_attr":
            return node.meta["val"]  # type: ignore[no-any-return]
        found = getattr(node.graph.owning_module, str(node.target))
        return self.mode.from_tensor(found) if isinstance(found, torch.Tensor) else found  # type: ignore[no-any-return]

    def run_nested(self, operator_name: str, args: Sequence[object]) -> None:
        """The nodes of the graphs of a branch or loop."""
        given = [list(arg) for arg in args if isinstance(arg, tuple | list)]
        if operator_name == "scan":
            with self.mode:
                given[1] = [rows[0] for rows in given[1]]
        for graph in args:
            if not isinstance(graph, torch.fx.GraphModule):
                continue
            for node, value in zip(graph.graph.find_nodes(op="placeholder"), itertools.chain(*given), strict=True):
                node.meta["val"] = value
            for node in graph.graph.nodes:
                self.run(node)
            graph.recompile()

    # Results.

    def add_output(self) -> None:
        kinds, graph = self.torch_export, self.program.graph
        changed = {write.target: write.value for write in graph.writes}
        results: list[object] = []
        for target, value in changed.items():
            node = self.copied(self.view.values[value])
            placeholder = self.copied(self.view.values[target])
            given = self.inputs[self.places[placeholder]]
            kind, name = "USER_INPUT_MUTATION", placeholder.name
            if given.kind is kinds.InputKind.BUFFER:
                kind, name = "BUFFER_MUTATION", str(given.target)
            elif given.kind is not kinds.InputKind.USER_INPUT:
                raise NoTorchExport(problem=f"it changes the parameter or constant `{given.target}`")
            results.append(node)
            arg = kinds.TensorArgument(name=node.name)
            self.outputs.append(kinds.OutputSpec(kinds.OutputKind[kind], arg, name))
        for leaf in self.signature.results:
            self.add_result(self.result(leaf), results)
        self.fx.output(tuple(results))  # type: ignore[arg-type]

    def copied(self, value: object) -> FxNode:
        if not isinstance(value, FxNode):
            raise NoTorchExport(problem="a result is not a tensor of its graph")
        return self.copies[value]

    def result(self, leaf: ResultLeaf) -> object:
        graph = self.program.graph
        match leaf.kind:
            case "output":
                return self.copied(self.view.values[graph.outputs[leaf.number].value])
            case "argument" | "state":
                number = leaf.number if leaf.kind == "state" else self.signature.arguments[leaf.number].number
                if number is None:
                    raise NoTorchExport(problem="it returns an argument that it does not use")
                node = graph.inputs[number]
                written = next((write.value for write in graph.writes if write.target is node), node)
                return self.copied(self.view.values[written])
            case "size" if isinstance(leaf.value, Expr):
                return self.size_node(leaf.value)
            case "number":
                raise NoTorchExport(problem="a result is a float or truth that changes")
        return leaf.value

    def size_node(self, value: Expr) -> FxNode:
        before = len(self.view.fx.nodes)
        found = self.view.sizes.number(value)
        for node in list(self.view.fx.nodes)[before:]:
            self.copies[node] = self.fx.node_copy(node, lambda old: self.copies[old])
            self.run(self.copies[node])
        return self.copied(found)

    def add_result(self, value: object, results: list[object]) -> None:
        kinds = self.torch_export
        arg = kinds.ConstantArgument(name="", value=value)
        if isinstance(value, FxNode):
            is_tensor = isinstance(value.meta["val"], torch.Tensor)
            arg = (kinds.TensorArgument if is_tensor else kinds.SymIntArgument)(name=value.name)
        results.append(value)
        self.outputs.append(kinds.OutputSpec(kinds.OutputKind.USER_OUTPUT, arg, None))

    # What belongs to the program.

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and persistent buffers, as the module's `state_dict` has them."""
        made: dict[str, torch.Tensor] = {}
        kinds = {state.name: state for state in self.signature.states}
        for name, tensor in self.program.state.items():
            state = kinds.get(name)
            if state is not None and state.persistent:
                is_parameter = state.kind == "parameter"
                made[name] = torch.nn.Parameter(tensor, tensor.requires_grad) if is_parameter else tensor
        made.update({name: made[of] for name, of in self.program.tied.items() if of in made})
        return made

    def constants(self) -> dict[str, torch.Tensor]:
        others = [state.name for state in self.signature.states if not state.persistent]
        return {**self.lifted, **{name: self.program.state[name] for name in others}}

    def whole_call(self) -> object:
        """The structure of arguments and results, as torch's pytree knows it."""
        export = import_module("torch.export.exported_program")
        structures = []
        for tree in (self.signature.in_tree, self.signature.out_tree):
            leaves: Sequence[object] = [*range(tree.size())]
            found, structure = pytree.tree_flatten(tree.build(leaves))
            structures.append(structure)
            if found != leaves:
                unknown = next((kind for kind in classes_in(tree) if kind not in pytree.SUPPORTED_NODES), tuple)
                problem = f"torch does not know `{unknown.__name__}` as a container: "
                raise NoTorchExport(problem=problem + f"call torch.export.register_dataclass({unknown.__name__})")
        in_spec, out_spec = structures
        count = len(self.signature.in_tree.children[0].children)
        names = [*self.signature.parameters[:count]]
        names += [f"args_{number}" for number in range(len(names), count)]  # of a parameter like `*args`
        names += map(str, self.signature.in_tree.children[1].keys)
        return export.ModuleCallEntry("", export.ModuleCallSignature([], [], in_spec, out_spec, names))


def classes_in(tree: Tree) -> Iterator[type]:
    """Of its containers, the dataclasses first."""
    for child in tree.children:
        yield from classes_in(child)
    if tree.keys and tree.type is not None and not issubclass(tree.type, dict):
        yield tree.type


def allowed(target: Callable[..., object] | str) -> Callable[..., object] | str:
    """What an exported program calls instead."""
    return FUNCTIONS.get(target, target)


# From torch.


def signature_of_exported(exported: ExportedProgram, flat: ProgramSignature) -> ProgramSignature:
    """The signature of `exported`; `flat` is that of its graph, from `plain_module`. Raises NoTorchExport."""
    in_tree, out_tree = (tree_of(spec) for spec in (exported.call_spec.in_spec, exported.call_spec.out_spec))
    if out_tree.size() != len(flat.results):
        raise NoTorchExport(problem=f"it returns {out_tree}, and its graph {len(flat.results)} values")
    positional = in_tree.children[0].children
    names = flat.parameters
    if len(positional) != in_tree.children[0].size():
        names = tuple([f"argument_{number}" for number in range(len(positional))])
    names = tuple(getattr(exported.module_call_graph[0].signature, "forward_arg_names", None) or names)
    return replace(flat, in_tree=in_tree, out_tree=out_tree, parameters=names[: len(positional)])


def plain_module(exported: ExportedProgram) -> torch.nn.Module:
    """A module whose `forward` takes the leaves of the arguments and returns those of the results, unchecked."""
    has_guards = "check_guards" in inspect.signature(exported.module).parameters
    graph_module = exported.module(**({"check_guards": False} if has_guards else {}))
    fake = import_module("torch._subclasses.fake_tensor").FakeTensor
    if lost := [name for name in exported.constants if isinstance(getattr(graph_module, name, None), fake)]:
        raise NoTorchExport(problem=f"its constant `{lost[0]}` has no value: torch.export has lost it")
    graph_module.graph._codegen = torch.fx.graph.CodeGen()
    graph_module.recompile()
    kind = type("ExportedModule", (torch.nn.Module,), {"forward": type(graph_module).forward})
    made: torch.nn.Module = kind()
    made.__dict__.update({name: value for name, value in graph_module.__dict__.items() if "hooks" not in name})
    return made


def user_inputs(exported: ExportedProgram) -> list[FxNode]:
    """The placeholders of the arguments."""
    kind = import_module("torch.export.graph_signature").InputKind.USER_INPUT
    nodes = exported.graph.find_nodes(op="placeholder")
    specs = exported.graph_signature.input_specs
    return [node for node, spec in zip(nodes, specs, strict=True) if spec.kind is kind]


def example_arguments(exported: ExportedProgram) -> tuple[object, ...]:
    """The leaves of a call: those that it was exported with, or zeros."""
    if exported.example_inputs is not None:
        return tuple(pytree.tree_leaves(exported.example_inputs))
    return tuple([example_argument(node) for node in user_inputs(exported)])


def example_argument(node: FxNode) -> object:
    value = node.meta["val"]
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise NoTorchExport(problem=f"its argument `{node.name}` is a number that a call may change")
    if not isinstance(value, torch.Tensor):
        return value
    sizes, strides = [[hint_of(number) for number in numbers] for numbers in (value.shape, value.stride())]
    return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device).zero_()


def hint_of(size: object) -> int:
    """The size in the call that was exported."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else cast(int, size)


def wanted_sizes(exported: ExportedProgram, args: Sequence[object]) -> tuple[object, ...]:
    """`dynamic_shapes` for the arguments: torch's symbols as named dimensions, other expressions as `Dim.AUTO`."""
    rows: list[object] = []
    values = [node.meta["val"] for node in user_inputs(exported)]
    for value, given in zip(values, args, strict=True):
        if not isinstance(value, torch.Tensor) or not isinstance(given, torch.Tensor):
            rows.append(None)
            continue
        wishes = [wanted_size(size, exported) for size in value.shape]
        rows.append({axis: wish for axis, wish in enumerate(wishes) if wish is not None} or None)
    return tuple(rows)


def wanted_size(size: int | torch.SymInt, exported: ExportedProgram) -> AnyDim | None:
    if not isinstance(size, torch.SymInt):
        return None
    expr = size.node.expr
    if expr.is_symbol:
        return named_dim(expr, exported)
    root, *others = [*expr.free_symbols] or [None]
    if root is None:
        return None
    if others or not expr.is_polynomial(root):
        return Dim.AUTO
    terms = expr.as_poly(root).all_coeffs()
    if len(terms) != 2 or not all(term.is_integer for term in terms):
        return Dim.AUTO
    return int(terms[0]) * named_dim(root, exported) + int(terms[1])


def named_dim(of: object, exported: ExportedProgram) -> Dim:
    """The dimension of a SymPy symbol; the names `s0` and `u0` are Kiln's own."""
    within = exported.range_constraints.get(of)  # type: ignore[call-overload]
    high = None if within is None or not within.upper.is_Integer else int(within.upper)
    return Dim(f"size_{of}", 0 if within is None else max(int(within.lower), 0), high)


def tree_of(spec: pytree.TreeSpec) -> Tree:
    return flatten(pytree.tree_unflatten([object() for _ in range(spec.num_leaves)], spec))[0]
