"""Python's builtin functions and types on values."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import pdb
import re
import sys
import threading
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, final

import torch

from kiln.capture.interpreter.alternatives import alternative, as_tensor, extreme_number, open_truth
from kiln.capture.interpreter.breaks import DataDependentBranch, DebuggerCall, Raised, UnsupportedCall
from kiln.capture.interpreter.builtins.class_statements import type_new
from kiln.capture.interpreter.builtins.math_functions import computed_in_front
from kiln.capture.interpreter.changed_numbers import has_many_values
from kiln.capture.interpreter.core import (
    MISSING,
    Args,
    CaptureState,
    Handler,
    Kwargs,
    Value,
    handles,
    measured,
    read_attr,
)
from kiln.capture.interpreter.data_values import assume, is_needed
from kiln.capture.interpreter.effects import Container
from kiln.capture.interpreter.hashing import store_entries
from kiln.capture.interpreter.native_calls import natives
from kiln.capture.interpreter.operations import (
    NAMES,
    Function2,
    binary,
    compare,
    dispatch,
    equal,
    fold,
    format_value,
    printable,
    real_binary,
    same,
    truth_value,
    unary,
)
from kiln.capture.interpreter.speculation import Rounding, rounded_number
from kiln.capture.interpreter.variables.array import ARRAY_METHODS, TracedArray, as_python_number
from kiln.capture.interpreter.variables.classes import Class
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.counted_range import counted_range, note_fixed
from kiln.capture.interpreter.variables.deferred_text import Deferred, rounded_later, text_of
from kiln.capture.interpreter.variables.index_range import index_range
from kiln.capture.interpreter.variables.iterators import (
    Generator,
    called_until,
    chained,
    enumerated,
    filtered,
    mapped,
    zipped,
)
from kiln.capture.interpreter.variables.mapping import Dict, DictView, dict_iterator
from kiln.capture.interpreter.variables.native_object import NativeObject
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.open_range import OpenRange
from kiln.capture.interpreter.variables.partial import Partial
from kiln.capture.interpreter.variables.sequence import (
    List,
    ReversedList,
    Slice,
    Tuple,
    all_items,
    consumed,
    listed,
    one_by_one,
    tuple_items,
)
from kiln.capture.interpreter.variables.sets import Set
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import Tensor, record, replaced
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import CallSource, ModuleGlobalSource
from kiln.symbolic.node import function_of


@handles(len)
def len_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    value = args[0].tensor if isinstance(args[0], TracedArray) and not args[0].is_scalar else args[0]
    value = value.args[0] if isinstance(value, Deferred) and value.cls is list else value
    if isinstance(value, Tensor) and value.fake.dim() and s.see is None and not replaced(s, value, "__len__"):
        return s.wrap(value.fake.shape[0], None)
    return measured(s, args[0])


@handles(getattr)
def getattr_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    name = attribute_name(s, "getattr", args[1])
    if len(args) == 2:
        return read_attr(s, args[0], name)
    found = attribute(s, args[0], name)
    return args[2] if found is None else found


def attribute_name(s: CaptureState, function: str, name: Value) -> str:
    text = name.constant(s)
    if not isinstance(text, str):
        raise s.error(TypeError, f"attribute name must be string, not '{type(text).__name__}'")
    return text


def attribute(s: CaptureState, value: Value, name: str) -> Value | None:
    """`value.name`, or None if that raises AttributeError."""
    try:
        return value.get_attr(s, name)
    except Raised as raised:
        if not issubclass(raised.value.python_type(), AttributeError):
            raise
        return None


@handles(hasattr)
def hasattr_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    name = attribute_name(s, "hasattr", args[1])
    if attribute(s, args[0], name) is None:
        return Constant(False)
    guard_own_attr(s, args[0], name)
    return Constant(True)


HASATTR = ModuleGlobalSource("builtins", "hasattr")


def guard_own_attr(s: CaptureState, value: Value, name: str) -> None:
    """Guard that an attribute that was found in the instance's dict is there."""
    real = value.real() if not isinstance(value, Tensor) else value.original
    if issubclass(type(real), threading.local):
        s.guard(CallSource(HASATTR, (s.reference(real), name)), GuardKind.EQUALS, True)
    elif name in getattr(real, "__dict__", ()) and not isinstance(value, Class):
        s.guard(value.source, GuardKind.HAS_ATTR, name)


@handles(setattr)
def setattr_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    args[0].set_attr(s, attribute_name(s, "setattr", args[1]), args[2])
    return Constant(None)


@handles(delattr)
def delattr_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    args[0].set_attr(s, attribute_name(s, "delattr", args[1]), None)
    return Constant(None)


@handles(type)
def type_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 3:
        return type_new(s, [s.wrap(type, None), *args], kwargs)
    if len(args) != 1:
        raise UnsupportedCall(function="type", why="it takes a value, or a name, bases and names")
    return s.wrap(s.guard_type(args[0]) if not args[0].is_torch else args[0].python_type(), None)


@handles(breakpoint, pdb.set_trace)
def start_debugger(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    raise DebuggerCall(function="breakpoint")


@handles(sys.settrace, sys.setprofile)
def trace_lines(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    raise DebuggerCall(function="sys.settrace")


@handles(bool)
def bool_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if args and isinstance(args[0], Symbolic) and args[0].python_type() is not float:
        return args[0] if args[0].python_type() is bool else s.wrap(args[0].node != 0, None)
    try:
        return Constant(truth_value(s, args[0], "bool()")) if args else Constant(False)
    except DataDependentBranch as stop:
        return open_truth(s, args[0], stop)


def number(kind: type, special: tuple[str, ...]) -> Callable[[CaptureState, Args, Kwargs], Value]:
    def convert(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        if not args and not kwargs:
            return Constant(kind())
        if not args:
            return natives(s).call(kind, args, kwargs)
        value = as_python_number(args[0])
        if isinstance(value, TracedArray) and value.tensor.fake.dim() == 0:
            value = value.tensor
        if isinstance(value, Symbolic):
            return symbolic_number(s, kind, value)
        if isinstance(value, Tensor) and s.see is not None:  # torch has no function of its own for `complex(tensor)`
            converted = s.see(s, next(name for name in special if hasattr(value.fake, name)), [value], {}, True)
            assert converted is not None
            return converted
        if isinstance(value, Tensor):
            return convert(s, [value.get_attr(s, "item").call(s, [], {})], {})
        if isinstance(value, Object) and len(args) == 1 and not kwargs:
            for name in special:
                if s.classes.lookup(value.cls, name) is not None:
                    return exactly(s, kind, value, name, s.call_special(value, name, [], {}))
        named = {name: arg.constant(s) for name, arg in kwargs.items()}
        return fold(s, functools.partial(kind, **named), *(arg.constant(s) for arg in args))

    return convert


def exactly(s: CaptureState, kind: type, value: Value, name: str, result: Value) -> Value:
    """What a special method made of `value`, which Python takes only if it is of the type itself."""
    made = result.python_type()
    if made is kind:
        return result
    if name == "__index__" and made is int and kind is float:
        return fold(s, float, result.constant(s))
    if issubclass(made, kind):  # with a warning
        s.counters.consumed += 1
        raise UnsupportedCall(function=kind.__name__, why=f"{name} returned a {made.__name__}")
    if name == "__float__":
        raise s.error(TypeError, f"{value.type_name()}.__float__ returned non-float (type {made.__name__})")
    raise s.error(TypeError, f"{name} returned non-int (type {made.__name__})")


for _rounding in ("floor", "ceil", "trunc"):

    @handles(getattr(math, _rounding))
    def _rounded(s: CaptureState, args: Args, kwargs: Kwargs, name: str = _rounding) -> Value:
        value = args[0]
        if isinstance(value, Symbolic) and value.python_type() is not bool:
            return rounded(s, getattr(math, name), value)
        if isinstance(value, Object):
            if name != "trunc" and s.classes.lookup(value.cls, f"__{name}__") is None:
                return fold(s, getattr(math, name), s.wrap(float, None).call(s, [value], {}).constant(s))
            return s.call_special(value, f"__{name}__", [], {})
        return fold(s, getattr(math, name), value.constant(s))


@handles(math.prod)
def prod(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    total = kwargs.get("start", Constant(1))
    for item in all_items(s, args[0]):
        total = binary(s, operator.mul, total, item)
    return total


def symbolic_number(s: CaptureState, kind: type, value: Symbolic) -> Value:
    """`int(value)` or `float(value)`."""
    value = value.number or value
    if value.python_type() is bool:
        return s.const(kind(value.constant(s)))
    if kind is value.python_type():
        return value
    if kind is float:
        return s.wrap(torch.sym_float(value.node), None)
    return rounded(s, math.trunc, value)


def rounded(s: CaptureState, rounding: Rounding, value: Symbolic) -> Value:
    known = rounded_number(s, rounding, value.node.node.value)
    if known is not None:
        return s.wrap(known, None)
    if not value.node.node.has_hint() and value.python_type() is float and s.policy.assumes and not is_needed(s):
        return rounded_in_region(s, rounding, value)
    whole = getattr(value.node.node, rounding.__name__)()
    return s.wrap(whole.constant if whole.is_constant() else torch.SymInt(whole), None)


def rounded_in_region(s: CaptureState, rounding: Rounding, value: Symbolic) -> Value:
    """The whole number near one that data decide; the region checks that it is one of 64 bits, as NaN is not."""
    exact = record(s, torch.scalar_tensor, [value], {"dtype": s.const(torch.float64)})
    is_near = record(s, operator.lt, [record(s, "abs", [exact], {}), s.const(2.0**62)], {})
    assert isinstance(is_near, Tensor)
    assume(s, is_near.fake)
    whole = record(s, rounding.__name__, [exact], {})
    return record(s, "to", [whole, s.const(torch.int64)], {}).get_attr(s, "item").call(s, [], {})


handles(int)(number(int, ("__int__", "__index__")))
handles(float)(number(float, ("__float__", "__index__")))


@handles(operator.index)
def index(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    (value,) = args
    if isinstance(value, Tensor) and not (value.fake.is_floating_point() or value.fake.is_complex()):
        return value.get_attr(s, "__index__").call(s, [], {})
    if isinstance(value, Symbolic) and value.python_type() is int:
        return value
    made = unary(s, operator.index, value)
    if not issubclass(made.python_type(), int):
        raise s.error(TypeError, f"__index__ returned non-int (type {made.type_name()})")
    return made


@handles(str)
def str_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1 or kwargs:
        return natives(s).call(str, args, kwargs)
    return text_of(s, str, args) or format_value(s, args[0], "s", "")


@handles(repr)
def repr_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], Tensor) and (text := text_of(s, repr, args)) is not None:
        return text
    own = s.classes.lookup(args[0].python_type(), "__repr__")
    if own is not None and (isinstance(args[0], Object) or type(own[1]) is types.FunctionType):
        made = s.call_special(args[0], "__repr__", [], {})
        if not issubclass(made.python_type(), str):
            raise s.error(TypeError, f"__repr__ returned non-string (type {made.type_name()})")
        return made
    if (text := text_of(s, repr, args)) is not None:
        return text
    if isinstance(args[0], Container | NativeObject):
        return natives(s).call(repr, args, kwargs)
    return Constant(repr(printable(s, args[0])))


@handles(tuple)
def tuple_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if args and isinstance(args[0], Tuple) and args[0].cls is tuple:
        return args[0]
    return Tuple(tuple_items(s, args[0]) if args else [])


def made_set(s: CaptureState, args: Args, cls: type) -> Set:
    if cls is frozenset and args and isinstance(args[0], Set) and args[0].cls is frozenset:
        return args[0]
    made = Set({})
    made.combine_in_place(s, "update", args)
    made.cls = cls
    return made


def fill(s: CaptureState, target: Dict, args: Args, kwargs: Kwargs) -> None:
    """What `dict.update` does."""
    for arg in args:
        native = getattr(arg, "native", None) or arg
        if isinstance(native, Dict) and not own_iteration(s, arg):
            store_entries(target.change(s), native.items(s))
        elif s.classes.lookup(arg.python_type(), "keys") is not None:
            for key in all_items(s, arg.get_attr(s, "keys").call(s, [], {})):
                target.set_item(s, key, arg.get_item(s, key))
        else:
            for number, pair in enumerate(one_by_one(s, arg)):
                if s.classes.lookup(pair.python_type(), "__iter__") is None:
                    reason = f"cannot convert dictionary update sequence element #{number} to a sequence"
                    raise s.error(TypeError, reason)
                items = all_items(s, pair)
                if len(items) != 2:
                    reason = f"dictionary update sequence element #{number} has length {len(items)}; 2 is required"
                    raise s.error(ValueError, reason)
                target.set_item(s, items[0], items[1])
    for name, value in kwargs.items():
        target.set_item(s, s.const(name), value)


def own_iteration(s: CaptureState, value: Value) -> bool:
    """Whether a dict's class says itself what its keys are: `dict(value)` asks it."""
    found = s.classes.lookup(value.python_type(), "__iter__")
    return found is not None and type(found[1]) is types.FunctionType


def made_dict(s: CaptureState, args: Args, kwargs: Kwargs, cls: type) -> Dict:
    made = Dict({}, cls)
    fill(s, made, args, kwargs)
    return made


@handles(defaultdict)
def default_dict(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    made = Dict({}, defaultdict)
    if args and not s.is_none(args[0]):
        if s.classes.lookup(args[0].python_type(), "__call__") is None:
            raise s.error(TypeError, "first argument must be callable or None")
        made.factory = args[0]
    fill(s, made, args[1:], kwargs)
    return made


@handles(range)
def made_range(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if not kwargs and (index := index_range(s, args)) is not None:
        return index
    if args and any([isinstance(arg, Symbolic) and has_many_values(s, arg) for arg in args]):
        return OpenRange(args)
    if args and not kwargs and (counted := counted_range(s, args)) is not None:
        return counted
    made = fold(s, functools.partial(range, **kwargs), *(arg.constant(s) for arg in args))
    note_fixed(s, made, args)
    return made


for _class in (torch.finfo, torch.iinfo, torch.device, bytes, complex):

    @handles(_class)
    def _immutable(s: CaptureState, args: Args, kwargs: Kwargs, cls: Any = _class) -> Value:
        """Instances of these are immutable, so they are made while tracing."""
        if s.see is not None and cls is torch.device and (seen := s.see(s, cls, args, kwargs, True)) is not None:
            return seen
        named = {name: arg.constant(s) for name, arg in kwargs.items()}
        return fold(s, functools.partial(cls, **named), *(arg.constant(s) for arg in args))


@handles(re._compile)  # type: ignore[attr-defined]
def compiled_pattern(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """The cache of patterns is no state of the program."""
    plain = [s.model.plain(s, arg) for arg in args]  # flags may be of a class of its own
    given = [arg.constant(s) if value is MISSING else value for arg, value in zip(args, plain, strict=True)]
    try:
        return s.wrap(re.compile(*given), None)  # type: ignore[arg-type, type-var]
    except re.error as error:
        raise UnsupportedCall(function="re.compile", why=f"it raises {error}") from error


@handles(iter)
def iter_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 2 and s.classes.lookup(args[0].python_type(), "__call__") is None:
        return fold(s, iter, 0, None)  # the text of its error differs by version of Python
    return args[0].iterate(s) if len(args) == 1 else called_until(args[0], args[1], equal)


@handles(next)
def next_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    iterator = args[0]
    if isinstance(iterator, Object) and len(args) == 1:
        return s.call_special(iterator, "__next__", [], {})
    item = iterator.next(s)
    if item is not None:
        return item
    if len(args) > 1:
        return args[1]
    raise iterator.stop(s) if isinstance(iterator, Generator) else s.error(StopIteration)


@handles(zip)
def zip_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    strict = "strict" in kwargs and kwargs["strict"].truth(s)
    return zipped([arg.iterate(s) for arg in args], strict)


@handles(enumerate)
def enumerate_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    start = args[1] if len(args) > 1 else kwargs.get("start", Constant(0))
    first = index(s, [start], {}).constant(s)
    return enumerated(args[0].iterate(s), first)


@handles(map)
def map_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if len(args) < 2:
        return natives(s).call(map, args, kwargs)
    return mapped(args[0], [arg.iterate(s) for arg in args[1:]])


@handles(reversed)
def reversed_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], Object) and s.classes.lookup(args[0].cls, "__reversed__") is not None:
        return s.call_special(args[0], "__reversed__", [], {})
    if isinstance(args[0], List):
        return ReversedList(args[0], len(args[0].items(s)) - 1)
    if isinstance(args[0], Dict | DictView):
        mapping, what = (args[0].mapping, args[0].what) if isinstance(args[0], DictView) else (args[0], "keys")
        return dict_iterator(s, mapping, what, backwards=True)
    if any(s.classes.lookup(args[0].python_type(), name) is None for name in ("__len__", "__getitem__")):
        raise s.error(TypeError, f"'{args[0].type_name()}' object is not reversible")
    return List(all_items(s, args[0])[::-1]).iterate(s)


def sort(s: CaptureState, items: list[Value], kwargs: Kwargs) -> list[Value]:
    key = kwargs.get("key")
    key = None if s.is_none(key) else key
    keyed = [(item if key is None else key.call(s, [item], {}), item) for item in items]
    reverse = "reverse" in kwargs and kwargs["reverse"].truth(s)
    ordered = sorted([(SortKey(s, rank), item) for rank, item in keyed], key=operator.itemgetter(0), reverse=reverse)
    return [item for _, item in ordered]


@final
class SortKey:
    """Sorts by `<` of the program, asked as often as `list.sort` asks."""

    __slots__ = ("state", "value")

    def __init__(self, s: CaptureState, value: Value) -> None:
        self.state = s
        self.value = value

    def __lt__(self, other: SortKey) -> bool:
        return compare(self.state, operator.lt, self.value, other.value).truth(self.state)


@handles(sum)
def sum_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    iterator = consumed(s, args[0])
    total = args[1] if len(args) > 1 else kwargs.get("start", Constant(0))
    if total.python_type() in (str, bytes, bytearray):
        return natives(s).call(sum, args, kwargs)
    numbers: list[Value] = []
    while (item := iterator.next(s)) is not None:
        if COMPENSATES and is_plain_number(total) and is_plain_number(item):
            numbers.append(item)
            continue
        total, numbers = binary(s, operator.add, sum_of_numbers(s, total, numbers), item), []
    return sum_of_numbers(s, total, numbers)


COMPENSATES = sys.version_info >= (3, 12)
"""`sum` keeps track of what the addition of floats rounds off."""


def is_plain_number(value: Value) -> bool:
    return value.is_constant and value.python_type() in (int, float, bool)


def sum_of_numbers(s: CaptureState, start: Value, numbers: list[Value]) -> Value:
    return fold(s, sum, [number.constant(s) for number in numbers], start.constant(s)) if numbers else start


def of_one_kind(items: list[Value]) -> bool:
    """Whether all are of one numeric type, so that the type of the result is known."""
    return {item.python_type() for item in items} in ({int}, {float})


def extreme_of_floats(s: CaptureState, function: Function2, left: Value, right: Value) -> Value:
    if isinstance(left, Symbolic) or isinstance(right, Symbolic):
        return real_binary(s, "sym_max" if function is operator.gt else "sym_min", left, right)
    return right if function(right.constant(s), left.constant(s)) else left


def extreme(function: Function2) -> Callable[[CaptureState, Args, Kwargs], Value]:
    def extreme_of(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        if not args or (len(args) > 1 and "default" in kwargs):
            return natives(s).call(max if function is operator.gt else min, args, kwargs)
        key = kwargs.get("key")
        key = None if s.is_none(key) else key
        items = all_items(s, args[0]) if len(args) == 1 and key is None else list(args)
        if key is None and any(isinstance(item, Symbolic) for item in items) and of_one_kind(items):
            if items[0].python_type() is float:  # torch's own forget which comes first, which matters for NaN
                return functools.reduce(functools.partial(extreme_of_floats, s, function), items)
            pick = torch.sym_max if function is operator.gt else torch.sym_min
            return s.wrap(functools.reduce(pick, [item.torch_arg(s) for item in items]), None)
        if key is None and (open_number := extreme_number(s, function, items)) is not None:
            return open_number
        iterator = consumed(s, args[0]) if len(args) == 1 and key is not None else List(items).iterate(s)
        best = iterator.next(s)
        if best is None:
            known = max if function is operator.gt else min
            return kwargs["default"] if "default" in kwargs else fold(s, known, [])
        rank = key.call(s, [best], {}) if key is not None else best
        while (item := iterator.next(s)) is not None:
            other = key.call(s, [item], {}) if key is not None else item
            test = compare(s, function, as_tensor(s, other), as_tensor(s, rank))
            try:
                follows = test.truth(s)
            except DataDependentBranch:
                chosen = alternative(s, test, item, best) if key is None else None
                if chosen is None:
                    raise
                best = rank = chosen
                continue
            if follows:
                best, rank = item, other
        return best

    return extreme_of


handles(max)(extreme(operator.gt))
handles(min)(extreme(operator.lt))


def quantifier(function: Callable[..., bool], decided_by: bool) -> None:
    """Register `any` or `all`: the first item whose truth value is `decided_by` decides."""

    @handles(function)
    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        iterator = args[0].iterate(s)
        while (item := iterator.next(s)) is not None:
            if truth_value(s, item, f"{function.__name__}()") is decided_by:
                return Constant(decided_by)
        return Constant(not decided_by)


quantifier(any, True)
quantifier(all, False)


@handles(abs)
def abs_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], Tensor):
        return record(s, "abs", args, {})
    if isinstance(args[0], Symbolic) and args[0].python_type() is int:
        return s.wrap(torch.sym_max(args[0].node, -args[0].node), None)
    if isinstance(args[0], Symbolic) and args[0].python_type() is float:
        return s.wrap(torch.SymFloat(function_of(args[0].node.node, "abs")), None)
    return fold(s, abs, args[0].constant(s)) if args[0].is_constant else s.call_special(args[0], "__abs__", [], {})


@handles(divmod)
def divmod_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if any(isinstance(arg, Object | NativeObject) for arg in args):
        return dispatch(s, divmod, *args)
    if all(arg.is_constant for arg in args):
        return fold(s, divmod, *[arg.constant(s) for arg in args])
    if not all(issubclass(arg.python_type(), (int, float)) for arg in args):  # tensors have no `__divmod__`, either
        left, right = [arg.type_name() for arg in args]
        raise s.error(TypeError, f"unsupported operand type(s) for divmod(): '{left}' and '{right}'")
    return Tuple([binary(s, operator.floordiv, *args), binary(s, operator.mod, *args)])


@handles(pow)
def pow_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if kwargs:
        return natives(s).call(pow, args, kwargs)
    if len(args) > 2:
        return fold(s, pow, *(arg.constant(s) for arg in args))
    return binary(s, operator.pow, args[0], args[1])


@handles(round)
def round_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], Tensor):
        if not hasattr(torch.Tensor, "__round__"):  # as in some versions of torch
            raise s.error(TypeError, f"type {args[0].python_type().__name__} doesn't define __round__ method")
        return record(s, "round", args, kwargs)
    if isinstance(args[0], TracedArray) and args[0].is_scalar and args[0].dtype.kind == "f" and not kwargs:
        if len(args) == 2 and not s.is_none(args[1]):
            return ARRAY_METHODS["round"](s, args[0], args[1:], {})
        return round_(s, [args[0].get_attr(s, "item").call(s, [], {})], {})
    if isinstance(args[0], Symbolic) and args[0].python_type() is int and len(args) == 1 and not kwargs:
        return args[0]
    if isinstance(args[0], Symbolic) and args[0].python_type() is float and len(args) == 1 and not kwargs:
        return rounded(s, round, args[0])
    if len(args) == 2 and not kwargs:
        computed = computed_in_front(s, "round", args) or rounded_later(s, *args)
        if computed is not None:
            return computed
    named = {name: arg.constant(s) for name, arg in kwargs.items()}
    return fold(s, functools.partial(round, **named), *(arg.constant(s) for arg in args))


@handles(functools.partial)
def partial(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    inner = args[0]
    if isinstance(inner, Partial) and inner.attributes() is None:
        return Partial(inner.function, [*inner.args, *args[1:]], {**inner.kwargs, **kwargs})
    return Partial(inner, list(args[1:]), kwargs)


@handles(functools.reduce)
def reduce(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    iterator = consumed(s, args[1])
    total = args[2] if len(args) > 2 else iterator.next(s)
    if total is None:
        raise s.error(TypeError, "reduce() of empty iterable with no initial value")
    while (item := iterator.next(s)) is not None:
        total = args[0].call(s, [total, item], {})
    return total


def operator_handler(function: Function2, compute: Callable[..., Value]) -> None:
    @handles(function)
    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        return compute(s, function, args[0], args[1])


for _name in NAMES:
    operator_handler(getattr(operator, _name + "_" if _name in ("and", "or") else _name), binary)
    if hasattr(operator, "i" + _name):
        operator_handler(getattr(operator, "i" + _name), binary)
for _name in ("lt", "le", "eq", "ne", "gt", "ge"):
    operator_handler(getattr(operator, _name), compare)


@handles(operator.setitem)
def setitem(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    target, key, value = args
    if isinstance(target, Tensor):
        return record(s, operator.setitem, args, {})
    target.set_item(s, key, value)
    return s.const(None)


@handles(operator.delitem)
def delitem(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    args[0].del_item(s, args[1])
    return s.const(None)


def sign(function: Callable[..., object]) -> Handler:
    return lambda s, args, kwargs: unary(s, function, args[0])


# fmt: off
EXPRESSIONS: Mapping[Hashable, Handler] = {
    callable:        lambda s, args, kwargs: Constant(s.classes.lookup(s.guard_type(args[0]), "__call__") is not None),
    list:            lambda s, args, kwargs: List(listed(s, args[0]) if args else []),
    torch.Size:      lambda s, args, kwargs: Tuple(tuple_items(s, args[0]) if args else [], torch.Size),
    set:             lambda s, args, kwargs: made_set(s, args, set),
    frozenset:       lambda s, args, kwargs: made_set(s, args, frozenset),
    dict:            lambda s, args, kwargs: made_dict(s, args, kwargs, dict),
    OrderedDict:     lambda s, args, kwargs: made_dict(s, args, kwargs, OrderedDict),
    slice:           lambda s, args, kwargs: Slice([s.const(None), *args] if len(args) == 1 else list(args)),
    sorted:          lambda s, args, kwargs: List(sort(s, listed(s, args[0]), kwargs)),
    filter:          lambda s, args, kwargs: filtered(None if s.is_none(args[0]) else args[0], args[1].iterate(s)),
    itertools.chain: lambda s, args, kwargs: chained(List(list(args)).iterate(s)),
    itertools.chain.from_iterable: lambda s, args, kwargs: chained(args[0].iterate(s)),
    operator.getitem: lambda s, args, kwargs: args[0].get_item(s, args[1]),
    operator.is_:     lambda s, args, kwargs: Constant(same(s, args[0], args[1])),
    operator.is_not:  lambda s, args, kwargs: Constant(not same(s, args[0], args[1])),
    **{function: sign(function) for function in (operator.neg, operator.pos, operator.invert)},
}
# fmt: on
for _function, _handler in EXPRESSIONS.items():
    handles(_function)(_handler)
