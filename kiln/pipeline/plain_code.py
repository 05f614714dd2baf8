"""Which instructions touch plain data only: numbers, texts, and containers of such.

    for r in reversed(rewards):          plain, if `rewards` is a list of floats
        total = r + 0.9 * total          plain
        returns.insert(0, total)         plain
    x = torch.tensor(returns)            may compute: a call of something else

Nothing of that can be in a graph, so it need not be captured (`python_stretches.py`). What lies on the stack and in
variables is found by a forward fixed point over kinds of values. It is a forecast made from one call: code that runs
in Python because of it is right for all others.
"""

from __future__ import annotations

import bisect
import builtins
import collections
import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from itertools import islice
from types import BuiltinFunctionType, CellType, CodeType, MethodType, ModuleType
from typing import Any, cast, final

import torch

from kiln.capture.bytecode.decode import ENDS, JUMPS, OR_POP, DecodedCode, decode
from kiln.capture.bytecode.liveness import live_locals
from kiln.support.records import dataclass

Argument = Any
"""Of an instruction: a number, a name or a constant."""
Kind = object
"""One of the words below, `TensorOf`, `KnownObject`, `MethodOf` or the code of a function that is made there."""
PLAIN, ANY, NULL, MODE, END_OF_MODE = "plain", "any", "NULL", "mode", "end of mode"
"""Plain data, also an iterator over such; whatever else; no value; a context manager that sets a mode of torch, and its
`__exit__`."""
ELEMENT, ELEMENTS = "element", "elements"
"""A part of a tensor that plain data choose, what compares such, or plain data; an iterator over parts."""


@final
@dataclass(frozen=True, slots=True)
class TensorOf:
    """The tensor that the argument with this name is."""

    name: str


@final
@dataclass(frozen=True, slots=True, eq=False)
class KnownObject:
    """A module, a builtin or a class that is found by its name, or an object that keeps its attributes in a dict."""

    found: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KnownObject) and other.found is self.found

    def __hash__(self) -> int:
        return id(self.found)


@final
@dataclass(frozen=True, slots=True)
class MethodOf:
    """A method of a value of some kind."""

    owner: Kind
    name: str


NUMBERS_AND_TEXTS = (int, float, bool, str, bytes, complex, type(None), range, slice)
CONTAINERS = (list, tuple, set, frozenset, dict, collections.deque, collections.OrderedDict, collections.Counter)
EMPTY: dict[object, object] = {}
BUILTIN_ITERABLES: tuple[Iterable[object], ...] = ([], (), range(0), "", set(), EMPTY, EMPTY.values(), EMPTY.items())
ITERATORS = (
    *(enumerate, zip, reversed, type(reversed([]))),
    *(type(iter(made)) for made in BUILTIN_ITERABLES),
    *(type(iter(collections.deque())), type(iter(collections.OrderedDict()))),
)
SCALARS, HELD = frozenset(NUMBERS_AND_TEXTS), frozenset(CONTAINERS)
MOST_ITEMS = 256
"""So many items of a container are looked at; the others are taken to be like them."""
FUNCTIONS = frozenset(
    (
        *(abs, all, any, bool, bytes, chr, dict, divmod, enumerate, float, frozenset, int, isinstance, len, list, max),
        *(min, ord, pow, print, range, repr, reversed, round, set, slice, sorted, str, sum, tuple, type, zip),
        *(collections.deque, collections.OrderedDict, collections.Counter),
        *(heapq.heappush, heapq.heappop, heapq.heapify, heapq.heappushpop, heapq.heapreplace),
        *(bisect.bisect_left, bisect.bisect_right, bisect.insort_left, bisect.insort_right),
    )
)
"""Of plain data they give plain data."""
MODULES = (math, torch, collections, heapq, bisect)
"""Their attributes are looked up."""
MODES = frozenset((torch.no_grad, torch.enable_grad, torch.inference_mode))
READ_OF_TENSORS = frozenset(("tolist", "item"))
READERS = frozenset((bool, float, int))
KNOWN_OF_TENSORS = frozenset(("dim", "numel", "size"))

OPERANDS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(["UNARY_NEGATIVE", "UNARY_NOT", "UNARY_INVERT", "FORMAT_SIMPLE", "CONVERT_VALUE"], (1, 1)),
    **dict.fromkeys(["BINARY_OP", "COMPARE_OP", "CONTAINS_OP", "FORMAT_WITH_SPEC"], (2, 1)),
    **dict.fromkeys(["LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "LIST_APPEND", "SET_ADD"], (1, 0)),
    **dict.fromkeys(("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE"), (1, 0)),
    "MAP_ADD": (2, 0),
    "BINARY_SLICE": (3, 1),
    "STORE_SUBSCR": (3, 0),
    "DELETE_SUBSCR": (2, 0),
    "GET_LEN": (0, 1),
}
"""How many values instructions take and leave that are plain if their operands are."""
COUNTED = frozenset(("BUILD_STRING", "BUILD_SLICE", "BUILD_TUPLE", "BUILD_LIST", "BUILD_SET"))
"""Those that take as many as their argument says."""
STORES = frozenset(("STORE_FAST", "STORE_FAST_OR_CELL"))
NOTHING = frozenset(("NOP", "RESUME", "KW_NAMES", "JUMP", "COPY_FREE_VARS", "MAKE_CELL"))


@final
@dataclass(frozen=True, slots=True)
class State:
    """The kinds on the stack, and of the variables that are known."""

    stack: tuple[Kind, ...]
    names: Mapping[str, Kind]

    def joined(self, other: State) -> State:
        stack = tuple([joined_kind(*kinds) for kinds in zip(self.stack, other.stack, strict=False)])
        names = {name: joined_kind(kind, other.names[name]) for name, kind in self.names.items() if name in other.names}
        return State(stack, names)


def joined_kind(first: Kind, second: Kind) -> Kind:
    if first == second:
        return first
    if isinstance(first, MethodOf) and isinstance(second, MethodOf) and first.name == second.name:
        return MethodOf(joined_kind(first.owner, second.owner), first.name)
    elements = all([kind in (PLAIN, ELEMENT) or isinstance(kind, TensorOf) for kind in (first, second)])
    return ELEMENT if elements else ANY


@final
@dataclass(slots=True)
class PlainCode:
    """What is known of the instructions that are reached from some place without passing one that may compute."""

    plain: set[int] = field(default_factory=set)
    reads: set[int] = field(default_factory=set)
    """Those among them that read the values of a tensor."""
    elements: set[int] = field(default_factory=set)
    """Those among them that take a part of one, or read it."""
    computing: set[int] = field(default_factory=set)
    """Those that may compute."""
    states: dict[int, State] = field(default_factory=dict)
    """What holds in front of each."""


def kind_of_object(value: object, name: str = "") -> Kind:
    """The kind of the argument with this name, or of what is found by it."""
    if is_plain(value):
        return PLAIN
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return TensorOf(name) if cast(torch.Tensor, value).dim() else ELEMENT
    if type(value) is MethodType and value.__name__ == "__exit__" and type(value.__self__) in MODES:
        return END_OF_MODE
    if type(value) is CellType:
        return kind_of_object(value.cell_contents) if value != CellType() else ANY
    if type(value) in ITERATORS:
        return ELEMENTS if type(first_item(value)) is torch.Tensor else ANY
    known = issubclass(type(value), type | BuiltinFunctionType | ModuleType) or keeps_attributes(type(value))
    return KnownObject(value) if known else ANY


def keeps_attributes(cls: type) -> bool:
    """Whether attributes of its objects are read and stored by Python's own rules."""
    same = all([getattr(cls, name) is getattr(object, name) for name in ("__getattribute__", "__setattr__")])
    return same and cls.__dictoffset__ != 0 and not hasattr(cls, "__getattr__")


def first_item(iterator: object) -> object:
    """What an iterator over a list gives first; None if it is over something else, or at its end."""
    items = next(iter(iterated(iterator)), None)
    return next(iter(items), None) if type(items) is list else None


def is_plain(value: object) -> bool:
    """Whether it is plain data, or a builtin iterator over such, as far as its first items tell."""
    waiting, count = [value], 0
    while waiting:
        found = waiting.pop()
        if type(found) in ITERATORS:
            waiting += iterated(found)
        elif type(found) in CONTAINERS:
            held = cast(Iterable[object], found)
            waiting += islice(held, MOST_ITEMS - count)
            if isinstance(found, dict):
                waiting += islice(found.values(), MOST_ITEMS - count)
        elif type(found) not in NUMBERS_AND_TEXTS:
            return False
        count += 1
        if count > MOST_ITEMS:
            break
    return True


def looks_plain(value: object) -> bool:
    """Whether the value, or its first item, is plain data. Guards ask it, so it looks into no iterators."""
    kind = type(value)
    if kind in SCALARS:
        return True
    if kind in HELD:
        return looks_plain(next(iter(cast(Iterable[object], value)), None))
    return kind in ITERATORS


def iterated(iterator: object) -> tuple[object, ...]:
    """What an iterator goes over; of one that does not tell, itself, which is no plain data."""
    try:
        made = cast(tuple[object, tuple[object, ...]], iterator.__reduce__())
    except TypeError:
        return (NotImplemented,)
    return tuple([found for found in made[1] if found != ""])


def plain_code(
    decoded: DecodedCode, start: int, entered: State, namespace: Mapping[str, object], *, keeps: bool = True
) -> PlainCode:
    """What is reached from `start` on. `namespace`: the globals of the code. `keeps`: whether variables may keep parts
    of tensors, which is asked again without, if something may compute with one."""
    result, waiting = PlainCode(), [start]
    states = result.states
    states[start] = entered
    while waiting:
        index = waiting.pop()
        after = Execution(decoded, index, states[index], namespace, keeps=keeps).after()
        if after is None:
            result.computing.add(index)
            continue
        result.plain.add(index)
        for successor, state in after:
            known = states.get(successor)
            joined = state if known is None else known.joined(state)
            if joined != known:
                states[successor] = joined
                waiting.append(successor)
    result.plain -= result.computing
    if keeps and any([takes_elements(decoded, index, states[index]) for index in result.computing]):
        return plain_code(decoded, start, entered, namespace, keeps=False)
    for index in result.plain:
        step = Execution(decoded, index, states[index], namespace, keeps=keeps)
        step.after()
        result.reads.update([index] * step.reads)
        result.elements.update([index] * step.takes)
    return result


def takes_elements(decoded: DecodedCode, index: int, before: State) -> bool:
    """Whether what may compute at `index`, or behind it, gets a part of a tensor."""
    kept = [name for name, kind in before.names.items() if kind == ELEMENT]
    return ELEMENT in before.stack or not live_locals(decoded)[index].isdisjoint(kept)


def is_plain_function(code: CodeType, namespace: Mapping[str, object]) -> bool:
    """Whether a function does nothing but what is plain, given plain data."""
    if code.co_freevars:
        return False
    names = dict.fromkeys(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], PLAIN)
    found = plain_code(decode(code), 0, State((), names), namespace)
    return not found.computing and not found.reads and not found.elements


@final
@dataclass(slots=True)
class Execution:
    """One instruction."""

    decoded: DecodedCode
    index: int
    before: State
    namespace: Mapping[str, object]
    keeps: bool
    reads: bool = False
    """Whether it reads the values of a tensor."""
    takes: bool = False
    """Whether it takes a part of one, or reads it."""

    def after(self) -> list[tuple[int, State]] | None:
        """Where it leads, and what holds there; None if it may compute."""
        inst = self.decoded.instruction(self.index)
        stack = list(self.before.stack)
        names: Mapping[str, Kind] = self.before.names
        if inst.name in STORES:
            if stack[-1] == ELEMENT and not self.keeps and self.decoded.instruction(self.index - 1).name != "FOR_ITER":
                return None
            names = {**names, inst.arg: stack.pop()}
        elif inst.name == "DELETE_FAST":
            names = {name: kind for name, kind in names.items() if name != inst.arg}
        elif inst.name == "FOR_ITER":
            item = PLAIN if stack[-1] == PLAIN else ELEMENT if stack[-1] == ELEMENTS else ANY
            return [
                (self.index + 1, State((*stack, item), names)),
                (inst.arg, State(tuple(stack[:-1]), names)),
            ]
        elif inst.name in OR_POP:
            ways = [(self.index + 1, State(tuple(stack[:-1]), names)), (inst.arg, State(tuple(stack), names))]
            return ways if stack[-1] == PLAIN else None
        elif inst.name not in NOTHING and (made := self.stack_after(inst.name, inst.arg, stack)) is not None:
            stack = made
        elif inst.name not in NOTHING:
            return None
        behind = State(tuple(stack), names)
        found = [(self.index + 1, behind)] if inst.name not in ENDS else []
        return [*found, (inst.arg, behind)] if inst.name in JUMPS else found

    def stack_after(self, name: str, arg: Argument, stack: list[Kind]) -> list[Kind] | None:
        """The stack behind it; None if it may compute."""
        if name in ("COMPARE_OP", "CONTAINS_OP", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE") and ELEMENT in stack[-2:]:
            return self.of_elements(name, stack)
        if name in OPERANDS or name in COUNTED:
            pops, pushes = OPERANDS.get(name, (arg, 1))
            return with_plain(stack, pops, pushes, builds=name.startswith("BUILD_"))
        row = MOVES.get(name)
        return row(self, stack, arg) if row is not None else None

    def of_elements(self, name: str, stack: list[Kind]) -> list[Kind] | None:
        """A comparison with an element, or a question for its truth."""
        count = 1 if name.startswith("POP_") else 2
        if not all([kind in (PLAIN, ELEMENT) for kind in stack[-count:]]):
            return None
        self.takes = True
        made = [] if count == 1 else [ELEMENT if name == "COMPARE_OP" else PLAIN]
        return [*stack[:-count], *made]

    def global_value(self, name: str) -> Kind:
        return kind_of_object(self.namespace.get(name, getattr(builtins, name, None)), f"globals()[{name!r}]")

    def attribute(self, stack: list[Kind], name: str) -> Kind | None:
        """The attribute of what is popped, None if reading it may compute."""
        owner = stack.pop()
        if isinstance(owner, KnownObject) and is_module(owner.found):
            return kind_of_object(vars(owner.found).get(name))
        if (
            isinstance(owner, KnownObject)
            and keeps_attributes(type(owner.found))
            and not hasattr(type(owner.found), name)
        ):
            return kind_of_object(vars(owner.found).get(name, NotImplemented))
        if isinstance(owner, TensorOf) and name in ("shape", "ndim"):
            return PLAIN
        return MethodOf(owner, name) if owner in (PLAIN, ELEMENT) or isinstance(owner, TensorOf) else None

    def called(self, stack: list[Kind], count: int) -> list[Kind] | None:
        first, second, *args = stack[len(stack) - count - 2 :]
        callee, args = (
            (first, args) if second == NULL else (second, args) if first == NULL else (first, [second, *args])
        )
        result = self.result(callee, args)
        return None if result is None else [*stack[: len(stack) - count - 2], result]

    def result(self, callee: Kind, args: list[Kind]) -> Kind | None:
        """What a call gives, None if it may compute."""
        if (
            isinstance(callee, MethodOf)
            and isinstance(callee.owner, TensorOf)
            and all([kind == PLAIN for kind in args])
        ):
            if callee.name in READ_OF_TENSORS:
                self.reads = True
            return PLAIN if callee.name in READ_OF_TENSORS or callee.name in KNOWN_OF_TENSORS else None
        if callee == END_OF_MODE:
            return PLAIN
        if self.reads_element(callee, args):
            self.takes = True
            return PLAIN
        if not all([kind == PLAIN or self.is_plain_function(kind) for kind in args]):
            return None
        if isinstance(callee, MethodOf) and callee.owner == PLAIN:
            return PLAIN
        if isinstance(callee, CodeType):
            return PLAIN if self.is_plain_function(callee) else None
        found = callee.found if isinstance(callee, KnownObject) else None
        if isinstance(found, type) and issubclass(found, BaseException):
            return ANY
        if isinstance(found, type) and found in MODES:
            return MODE
        is_of_math = isinstance(found, BuiltinFunctionType) and found.__module__ == "math"
        return PLAIN if is_of_math or is_in(found, FUNCTIONS) else None

    def reads_element(self, callee: Kind, args: list[Kind]) -> bool:
        """Whether it is `x[i].item()`, `int(x[i])` or the like."""
        if isinstance(callee, MethodOf):
            return callee.owner == ELEMENT and callee.name in READ_OF_TENSORS and not args
        return args == [ELEMENT] and isinstance(callee, KnownObject) and is_in(callee.found, READERS)

    def is_plain_function(self, kind: Kind) -> bool:
        return isinstance(kind, CodeType) and is_plain_function(kind, self.namespace)


def is_module(found: object) -> bool:
    return any([found is module for module in MODULES])


def is_in(found: object, functions: frozenset[object]) -> bool:
    """Whether it is one of them, though it may have no hash."""
    return isinstance(found, type | BuiltinFunctionType) and found in functions


def with_plain(stack: list[Kind], pops: int, pushes: int, *, builds: bool = False) -> list[Kind] | None:
    """The stack behind an instruction that takes `pops` plain values; one that `builds` a container takes all."""
    taken, rest = stack[len(stack) - pops :], stack[: len(stack) - pops]
    is_plain_data = all([kind == PLAIN for kind in taken])
    if not is_plain_data and not builds:
        return None
    return [*rest, *[PLAIN if is_plain_data else ANY] * pushes]


def moved(
    change: Callable[[list[Kind], Argument], object],
) -> Callable[[Execution, list[Kind], Argument], list[Kind] | None]:
    """A row of an instruction that only moves values."""

    def row(step: Execution, stack: list[Kind], arg: Argument) -> list[Kind] | None:
        change(stack, arg)
        return stack

    return row


def swap(stack: list[Kind], depth: int) -> None:
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


def make_function(step: Execution, stack: list[Kind], flags: int) -> list[Kind] | None:
    """A function without defaults, annotations and cells is known by its code."""
    stack.append(stack.pop() if flags == 0 else ANY)
    return stack if flags == 0 else None


def unpack(step: Execution, stack: list[Kind], count: int) -> list[Kind] | None:
    return [*stack[:-1], *[PLAIN] * count] if stack[-1] == PLAIN else None


def unpack_ex(step: Execution, stack: list[Kind], counts: int) -> list[Kind] | None:
    return unpack(step, stack, (counts & 255) + (counts >> 8) + 1)


def subscript(step: Execution, stack: list[Kind], arg: int) -> list[Kind] | None:
    """`list[float]` is called as `list` is."""
    of = stack[-2]
    if (of == ELEMENT or isinstance(of, TensorOf)) and stack[-1] == PLAIN:
        step.takes = True
        return [*stack[:-2], ELEMENT]
    if of == PLAIN and stack[-1] == ELEMENT:
        step.takes = True
        return [*stack[:-2], PLAIN]
    is_generic = isinstance(of, KnownObject) and of.found in CONTAINERS
    return [*stack[:-2], of] if is_generic else with_plain(stack, 2, 1)


def load_attr(step: Execution, stack: list[Kind], name: str) -> list[Kind] | None:
    found = step.attribute(stack, name)
    return None if found is None else [*stack, found]


def load_method(step: Execution, stack: list[Kind], name: str) -> list[Kind] | None:
    found = step.attribute(stack, name)
    return None if found is None else [*stack, found, NULL]


def iterate(step: Execution, stack: list[Kind], arg: int) -> list[Kind] | None:
    over_tensor = stack[-1] == ELEMENT or isinstance(stack[-1], TensorOf)
    return [*stack[:-1], ELEMENTS] if over_tensor else with_plain(stack, 1, 1)


def store_attr(step: Execution, stack: list[Kind], name: str) -> list[Kind] | None:
    value, owner = stack[-2:]
    if not isinstance(owner, KnownObject) or value != PLAIN or hasattr(type(owner.found), name):
        return None
    return stack[:-2] if keeps_attributes(type(owner.found)) else None


def begin_mode(step: Execution, stack: list[Kind], arg: int) -> list[Kind] | None:
    return [*stack[:-1], END_OF_MODE, PLAIN] if stack[-1] == MODE else None


def build_map(step: Execution, stack: list[Kind], count: int) -> list[Kind] | None:
    return with_plain(stack, 2 * count, 1, builds=True)


MOVES: Mapping[str, Callable[[Execution, list[Kind], Argument], list[Kind] | None]] = {
    "LOAD_FAST": lambda step, stack, name: [*stack, step.before.names.get(name, ANY)],
    "LOAD_FAST_AND_CLEAR": lambda step, stack, name: [*stack, step.before.names.get(name, ANY)],
    "LOAD_CONST": lambda step, stack, value: [*stack, value if isinstance(value, CodeType) else kind_of_object(value)],
    "LOAD_GLOBAL": lambda step, stack, name: [*stack, step.global_value(name)],
    "LOAD_GLOBAL_CALL": lambda step, stack, name: [*stack, NULL, step.global_value(name)],
    "LOAD_DEREF": lambda step, stack, name: [*stack, step.before.names.get(name, ANY)],
    "LOAD_CLOSURE": lambda step, stack, name: [*stack, ANY],
    "LOAD_ATTR": load_attr,
    "LOAD_METHOD": load_method,
    "STORE_ATTR": store_attr,
    "GET_ITER": iterate,
    "POP_TOP": moved(lambda stack, arg: stack.pop()),
    "STORE_DEREF": moved(lambda stack, arg: stack.pop()),
    "RETURN_VALUE": moved(lambda stack, arg: stack.pop()),
    "RETURN_CONST": moved(lambda stack, arg: None),
    "RAISE_VARARGS": moved(lambda stack, arg: None),
    "YIELD_VALUE": moved(lambda stack, arg: stack.__setitem__(-1, PLAIN)),
    "RETURN_GENERATOR": moved(lambda stack, arg: stack.append(PLAIN)),
    "POP_JUMP_IF_NONE": moved(lambda stack, arg: stack.pop()),
    "POP_JUMP_IF_NOT_NONE": moved(lambda stack, arg: stack.pop()),
    "IS_OP": lambda step, stack, arg: [*stack[:-2], PLAIN],
    "INTRINSIC": lambda step, stack, arg: with_plain(stack, 1, 1),
    "PUSH_NULL": moved(lambda stack, arg: stack.append(NULL)),
    "COPY": moved(lambda stack, depth: stack.append(stack[-depth])),
    "SWAP": moved(swap),
    "FORMAT_VALUE": lambda step, stack, flags: with_plain(stack, 2 if flags & 4 else 1, 1),
    "BUILD_MAP": build_map,
    "BUILD_CONST_KEY_MAP": lambda step, stack, count: with_plain(stack, count + 1, 1, builds=True),
    "UNPACK_SEQUENCE": unpack,
    "UNPACK_EX": unpack_ex,
    "BINARY_SUBSCR": subscript,
    "MAKE_FUNCTION": make_function,
    "BEFORE_WITH": begin_mode,
    "CALL": lambda step, stack, count: step.called(stack, count),
    "CALL_KW": lambda step, stack, count: step.called(stack[:-1], count),
}
"""What other instructions make of the stack."""
