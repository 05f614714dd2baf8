"""What the inputs and results of a program's graph mean to its caller.

    parameter  layer.weight     graph input 0
    buffer     norm.mean        graph input 1, written
    argument   x                graph input 2
    argument   flag             must be True
    result     logits           output 0
    result     n                the size 2*batch
    result     mean             the number in output 1

Graph inputs come in the order parameters, buffers, constants, arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Union, final

import torch

from kiln.programs.call.errors import DamagedProgram, NotSavable, WrongProgramInput
from kiln.programs.call.fields import Fields, Json
from kiln.programs.call.tree import Tree, flatten, tree_from_json
from kiln.support.records import dataclass
from kiln.symbolic import Int, parse_int
from kiln.tensor.dtypes import DTYPE_NAMES, DTYPES_BY_NAME

StateKind = Literal["parameter", "buffer", "constant"]
STATE_KINDS = ("parameter", "buffer", "constant")
Constant = Union[None, bool, int, float, str, torch.dtype, torch.device]  # noqa: UP007
CONSTANTS = (type(None), bool, int, float, str, torch.dtype, torch.device)


@final
@dataclass(frozen=True, slots=True)
class StateInput:
    """A tensor that the program carries: its name in the module's `state_dict`, or a path for constants.

    `persistent`: `state_dict` has it.
    """

    name: str
    kind: StateKind
    persistent: bool = True


@final
@dataclass(frozen=True, slots=True)
class ArgumentLeaf:
    """A leaf of the arguments: graph input `number`; else a constant that must equal `value`; `unused`: anything."""

    name: str
    number: int | None = None
    value: object = None
    unused: bool = False


@final
@dataclass(frozen=True, slots=True)
class ResultLeaf:
    """A leaf of the results: an output of the graph, the float or truth in one, an argument or a carried tensor as it
    is, a size, a constant.

    `number` counts outputs of the graph, leaves of the arguments, or states.
    """

    kind: Literal["output", "number", "argument", "state", "size", "constant"]
    number: int = 0
    value: object = None

    @property
    def is_in_output(self) -> bool:
        """Whether an output of the graph holds it."""
        return self.kind in ("output", "number")


RESULT_KINDS = ("output", "number", "argument", "state", "size", "constant")


@final
@dataclass(frozen=True, slots=True)
class ProgramSignature:
    """`parameters` are the names of the positional arguments; `positional` and `keywords` those of the exported call.

    `in_tree` is the structure of (positional arguments, keyword arguments).
    """

    states: tuple[StateInput, ...]
    arguments: tuple[ArgumentLeaf, ...]
    results: tuple[ResultLeaf, ...]
    parameters: tuple[str, ...]
    in_tree: Tree
    out_tree: Tree
    gradients: tuple[str, ...] = ()
    """Of a training program: the parameters whose gradients are the last outputs of the graph, in order."""

    def leaves_of(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[object]:
        """The leaves of a call, which may give arguments by position or name."""
        positional, keywords = self.in_tree.children
        names = dict(zip(self.parameters, args, strict=False))
        if twice := sorted(names.keys() & kwargs.keys()):
            raise WrongProgramInput(problem=f"`{twice[0]}` is given twice", reason="by position and by name")
        given: dict[str, object] = {**names, **kwargs}
        rest = args[len(self.parameters) :]
        ordered: list[object] = []
        for name in self.parameters[: len(positional.children)]:
            if name not in given:
                raise WrongProgramInput(problem=f"`{name}` is missing", reason=f"the program takes {self.call_text()}")
            ordered.append(given.pop(name))
        ordered += rest
        named = {str(key): given.pop(str(key)) for key in keywords.keys if str(key) in given}
        if given:
            problem = f"there is no argument `{next(iter(given))}`"
            raise WrongProgramInput(problem=problem, reason=f"the program takes {self.call_text()}")
        tree, leaves = flatten((tuple(ordered), named))
        if tree != self.in_tree:
            raise WrongProgramInput(problem=f"their structure is {tree}", reason=f"it was exported with {self.in_tree}")
        return leaves

    def call_text(self) -> str:
        """The names of the arguments."""
        positional, keywords = self.in_tree.children
        count = len(positional.children)
        names = [*self.parameters[:count]]
        names += [f"argument {number}" for number in range(len(names), count)]
        return ", ".join([*names, *[f"{key}=" for key in keywords.keys]]) or "no arguments"

    def to_json(self) -> Json:
        return {
            "states": [
                {"name": state.name, "kind": state.kind, "persistent": state.persistent} for state in self.states
            ],
            "arguments": [
                {
                    "name": leaf.name,
                    "number": leaf.number,
                    "unused": leaf.unused,
                    "value": None if leaf.unused else constant_to_json(leaf.value, f"argument `{leaf.name}`"),
                }
                for leaf in self.arguments
            ],
            "results": [_result_to_json(leaf) for leaf in self.results],
            "parameters": list(self.parameters),
            "in_tree": self.in_tree.to_json(),
            "out_tree": self.out_tree.to_json(),
            "gradients": list(self.gradients),
        }  # fmt: skip


def _result_to_json(leaf: ResultLeaf) -> Json:
    value: Json = str(leaf.value) if leaf.kind == "size" else constant_to_json(leaf.value, "a result")
    return {"kind": leaf.kind, "number": leaf.number, "value": value}


def constant_to_json(value: object, place: str) -> Json:
    """A plain value; dtypes, devices and numbers that JSON lacks are marked."""
    match value:
        case None | bool() | int() | str():
            return {"plain": value}
        case float():
            return {"float": value.hex()}
        case torch.dtype() if value in DTYPE_NAMES:
            return {"dtype": DTYPE_NAMES[value]}
        case torch.device():
            return {"device": str(value)}
    raise NotSavable(place=place, type=type(value).__qualname__)


def constant_from_json(data: Json) -> Constant:
    """Inverse of `constant_to_json`. Raises DamagedProgram."""
    if isinstance(data, dict) and len(data) == 1:
        ((kind, value),) = data.items()
        if kind == "plain" and type(value) in (type(None), bool, int, str):
            return value  # type: ignore[return-value, no-any-return]
        try:
            match kind, value:
                case "float", str():
                    return float.fromhex(value)
                case "dtype", str():
                    return DTYPES_BY_NAME[value]
                case "device", str():
                    return torch.device(value)
        except (ValueError, KeyError, RuntimeError, OverflowError) as problem:
            raise DamagedProgram(problem=f"a constant of kind {kind!r} is {str(value)[:40]!r}") from problem
    raise DamagedProgram(problem="a constant is not a plain value")


def signature_from_json(data: Json, inputs: int, outputs: int, *, plain: bool = False) -> ProgramSignature:
    """Inverse of `ProgramSignature.to_json`, for a graph with so many inputs and outputs.

    `plain`: dicts and tuples take the place of registered classes. Raises DamagedProgram.
    """
    fields = Fields(data, "signature")
    states = tuple([_state(item) for item in fields.items("states")])
    arguments = tuple([_argument(item, inputs) for item in fields.items("arguments")])
    limits = {"output": outputs, "number": outputs, "argument": len(arguments), "state": len(states)}
    made = ProgramSignature(
        states,
        arguments,
        tuple([_result(item, limits) for item in fields.items("results")]),
        fields.texts("parameters"),
        tree_from_json(fields.take("in_tree"), plain=plain),
        tree_from_json(fields.take("out_tree"), plain=plain),
        fields.texts("gradients"),
    )
    fields.finish()
    check_signature(made, inputs, outputs)
    return made


def _state(data: Json) -> StateInput:
    fields = Fields(data, "state")
    kind = fields.choice("kind", STATE_KINDS)
    made = StateInput(fields.text("name"), kind, fields.flag("persistent"))  # type: ignore[arg-type]
    fields.finish()
    return made


def _argument(data: Json, count: int) -> ArgumentLeaf:
    fields = Fields(data, "argument")
    unused, value = fields.flag("unused"), fields.take("value")
    plain = None if unused else constant_from_json(value)
    made = ArgumentLeaf(fields.text("name"), fields.optional_integer("number", count), plain, unused)
    fields.finish()
    return made


def _result(data: Json, limits: Mapping[str, int]) -> ResultLeaf:
    fields = Fields(data, "result")
    kind = fields.choice("kind", RESULT_KINDS)
    value: Constant | Int
    if kind == "size":
        value = parse_int(fields.text("value"))
    else:
        value = constant_from_json(fields.take("value"))
    made = ResultLeaf(kind, fields.integer("number", limits.get(kind, 1)), value)  # type: ignore[arg-type]
    fields.finish()
    return made


def check_signature(signature: ProgramSignature, inputs: int, outputs: int) -> None:
    """Raise DamagedProgram unless the signature fits itself and the numbers of graph inputs and outputs."""
    names = [state.name for state in signature.states]
    numbers = sorted(leaf.number for leaf in signature.arguments if leaf.number is not None)
    trees = signature.in_tree, *signature.in_tree.children
    problems = {
        "a name of a parameter or buffer is used twice": len(set(names)) != len(names),
        "its inputs are not those of the graph": numbers != list(range(len(names), inputs)),
        "the arguments do not fit their structure": signature.in_tree.size() != len(signature.arguments),
        "the results do not fit their structure": signature.out_tree.size() != len(signature.results),
        "the structure of the arguments is not (args, kwargs)": [tree.type for tree in trees] != [tuple, tuple, dict],
        "gradients are of unknown parameters": not set(signature.gradients) <= set(names),
        "it has more gradients than outputs": len(signature.gradients) > outputs,
    }
    for problem, found in problems.items():
        if found:
            raise DamagedProgram(problem=problem)
