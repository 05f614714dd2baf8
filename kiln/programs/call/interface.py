"""From the arguments of a call to the inputs of a program's graph, and from its outputs to the results.

interface.bind(leaves)                        {batch: 8}, or WrongProgramInput
interface.inputs(states, leaves, {batch: 8})  [weight, bias, x in the layout that the graph expects]
interface.results(leaves, states, outputs, evaluate)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import cast, final

import torch

from kiln.programs.call.errors import DamagedProgram, WrongProgramInput
from kiln.programs.call.shapes import ShapeRules, Values, in_layout
from kiln.programs.call.signature import ProgramSignature
from kiln.programs.call.specs import bound_by, used_by
from kiln.support.records import dataclass
from kiln.symbolic import Int, Symbol, symbol
from kiln.tensor.spec import ScalarSpec, TensorSpec


@final
@dataclass(frozen=True, slots=True)
class CallInterface:
    """`names` and `specs` are those of the graph's inputs: states, then arguments.

    `written`: inputs whose contents a call changes; `shared`: inputs whose memory a result has.
    """

    signature: ProgramSignature
    rules: ShapeRules
    names: tuple[str, ...]
    specs: tuple[TensorSpec | ScalarSpec, ...]
    written: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()

    def leaves(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[object]:
        """The leaves of a call's arguments. Raises WrongProgramInput for another structure."""
        return self.signature.leaves_of(args, kwargs)

    def check_shapes(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, int]:
        """The sizes of a call by the names of their symbols. Raises WrongProgramInput."""
        return {symbol.name: number for symbol, number in self.bind(self.leaves(args, kwargs)).items()}

    def bind(self, leaves: Sequence[object]) -> Values:
        """The sizes that the symbols stand for. Raises WrongProgramInput."""
        names, specs, values = [], [], []
        for leaf, value in zip(self.signature.arguments, leaves, strict=True):
            if leaf.number is not None:
                names.append(leaf.name)
                specs.append(self.specs[leaf.number])
                values.append(value)
            elif not leaf.unused and not same_constant(leaf.value, value):
                problem = f"`{leaf.name}` is {value!r}"
                raise WrongProgramInput(problem=problem, reason=f"it was exported with {leaf.value!r}, which is fixed")
        return self.rules.bind(names, specs, values)

    def inputs(self, states: Sequence[torch.Tensor], leaves: Sequence[object], bound: Values) -> list[object]:
        """The graph's inputs. Raises WrongProgramInput for memory that the program cannot write or share."""
        inputs: list[object] = [*states, *[None] * (len(self.specs) - len(states))]
        for leaf, value in zip(self.signature.arguments, leaves, strict=True):
            if leaf.number is None:
                continue
            spec = self.specs[leaf.number]
            if isinstance(value, torch.Tensor) and isinstance(spec, TensorSpec):
                fitted = in_layout(value, spec, bound)
                if fitted is not value and (leaf.number in self.written or leaf.number in self.shared):
                    problem = f"`{leaf.name}` has the strides {tuple(value.stride())}"
                    reason = f"the program changes or returns its memory, and was exported with {spec}"
                    raise WrongProgramInput(problem=problem, reason=reason)
                value = fitted
            inputs[leaf.number] = value
        self._refuse_overlap(inputs, len(states))
        return inputs

    def _refuse_overlap(self, inputs: Sequence[object], first: int) -> None:
        """An argument that is written has its memory for itself: otherwise others would change with it."""
        if not self.written or first == len(inputs):
            return
        memory: dict[int, list[int]] = {}
        for number, value in enumerate(inputs):
            if isinstance(value, torch.Tensor) and value.numel():
                memory.setdefault(value.untyped_storage().data_ptr(), []).append(number)
        for numbers in memory.values():
            pairs = ((left, right) for left in numbers if left in self.written for right in numbers if left != right)
            for pair in pairs:
                if max(pair) >= first:
                    changed, other = (self.names[number] for number in pair)
                    problem = f"`{changed}` and `{other}` share memory"
                    raise WrongProgramInput(problem=problem, reason=f"the program changes `{changed}`")

    def bound_symbols(self) -> set[Symbol]:
        """The symbols that the arguments tell. Raises DamagedProgram where the interface needs others."""
        first = len(self.signature.states)
        if any(used_by(spec) for spec in self.specs[:first]):
            raise DamagedProgram(problem="a parameter or buffer has a symbolic size")
        bound = {found for spec in self.specs[first:] for found in bound_by(spec)}
        if len({symbol(each.name) for each in self.rules.ranges} & bound) != len(self.rules.ranges):
            raise DamagedProgram(problem="a range is of no size, or of one twice")
        needed = [used_by(spec) for spec in self.specs[first:]]
        needed += [set(constraint.relation.free_symbols()) for constraint in self.rules.constraints]
        require_known(bound, set().union(*needed))
        return bound

    def results(
        self,
        leaves: Sequence[object],
        states: Sequence[torch.Tensor],
        outputs: Sequence[object],
        size: Callable[[Int], int],
    ) -> object:
        """The results in their structure; `size` is the number of a size expression."""
        made: list[object] = []
        for leaf in self.signature.results:
            match leaf.kind:
                case "output":
                    made.append(outputs[leaf.number])
                case "number":
                    made.append(number_in(outputs[leaf.number]))
                case "argument":
                    made.append(leaves[leaf.number])
                case "state":
                    made.append(states[leaf.number])
                case "size":
                    made.append(size(cast(Int, leaf.value)))
                case _:
                    made.append(leaf.value)
        return self.signature.out_tree.build(made)


NUMBERS = (torch.float64, torch.bool)
"""Dtypes of the outputs that hold a float or a truth."""


def number_in(output: object) -> float | bool:
    """The number or truth that an output of the graph holds. Raises DamagedProgram."""
    if isinstance(output, torch.Tensor) and output.numel() == 1 and output.dtype in NUMBERS:
        return output.item()
    raise DamagedProgram(problem="a number among its results is no output of one element")


def require_known(bound: set[Symbol], needed: Collection[Symbol]) -> None:
    """Raise DamagedProgram for a symbol that nothing binds."""
    if unknown := sorted(set(needed) - bound, key=str):
        raise DamagedProgram(problem=f"nothing says what the size {unknown[0]} is")


def same_constant(expected: object, found: object) -> bool:
    """Equal in type and value; NaN equals NaN."""
    if type(expected) is not type(found):
        return False
    return expected is found or bool(expected == found) or (expected != expected and found != found)
