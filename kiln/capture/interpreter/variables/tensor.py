"""Tensors and symbolic numbers, and how a torch call is recorded.

x.sum(dim=1)     recorder.call("sum", (fake,), {"dim": 1})  ->  Tensor
x.shape          metadata of the fake, no torch call        ->  Tuple
x.item()         depends on the value                       ->  graph break
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Hashable
from dataclasses import field
from functools import partial
from typing import cast, final

import torch

from kiln.capture.interpreter.arity import refuse_unread
from kiln.capture.interpreter.breaks import (
    DataDependentBranch,
    DataDependentValue,
    GraphBreak,
    PastStep,
    TorchCallFailed,
    UninitialisedParameter,
    UnsupportedAttribute,
    UnsupportedCall,
    UnsupportedValue,
)
from kiln.capture.interpreter.conjugates import LAYOUT, is_conjugate, is_seen_as_view
from kiln.capture.interpreter.core import (
    AS_INDEX,
    HANDLERS,
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Codegen,
    Handler,
    Kwargs,
    Token,
    Value,
    note_innermost,
    wraps,
)
from kiln.capture.interpreter.data_values import (
    Place,
    SizesMatch,
    ValueNeeded,
    assumed_truth,
    call_on_fakes,
    is_needed,
    likely_truth,
    number_hidden,
    number_made,
    number_read,
    past_step,
    size_made,
    speculated_size,
    speculated_value,
    value_needed,
)
from kiln.capture.interpreter.effects import SideEffect, emit_deletion
from kiln.capture.interpreter.frame import running_frame
from kiln.capture.interpreter.speculation import known_truth
from kiln.capture.interpreter.variables.bound_method import NamedMethod
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.early_inputs import reading
from kiln.capture.interpreter.variables.index_range import IndexRange
from kiln.capture.interpreter.variables.input_names import InputNames
from kiln.capture.interpreter.variables.mapping import Dict, claim_dict
from kiln.capture.interpreter.variables.sequence import List, Slice, Tuple
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor_names import (
    HANDLED_METHODS,
    IN_PLACE,
    METADATA_ATTRIBUTES,
    METADATA_METHODS,
    NUMBER_METHODS,
    PLAIN_METHODS,
    PYTHON_METHODS,
    RECORDED_ATTRIBUTES,
    TRUTH_METHODS,
    VALUE_METHODS,
    WHOLE_METHODS,
)
from kiln.capture.interpreter.variables.tensor_protocol import PROTOCOL, call_protocol
from kiln.graph.trace.fake import FakeTensor, is_wrapped
from kiln.graph.trace.gradients import accumulated_gradients
from kiln.graph.trace.log import Target, target_name
from kiln.graph.trace.recorder import changes_state, recording
from kiln.graph.trace.set_data import set_data
from kiln.graph.trace.storage_view import FakeStorage
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import DictAttrSource, OffsetSource, Source
from kiln.support.records import dataclass
from kiln.symbolic import DataDependentSize, NoHint, Symbol
from kiln.symbolic.expr import Expr
from kiln.symbolic.values import Given, Real

INDEX_DTYPES = (torch.int8, torch.int16, torch.int32, torch.int64)
"""Of a tensor of rank 0 that is an index like a number. One of bool or uint8 is a mask."""
PLAIN_ENTRIES = (int, float, str, bool, type(None))
"""Types of constants that a program may keep on a tensor's class."""
SETS_STATE = ("data", "requires_grad_", "detach_")
PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


@final
@dataclass(frozen=True)
class TensorAttributeEffect(SideEffect):
    """An attribute of a tensor, from outside or a result of the region, was set or deleted."""

    value: Tensor
    name: str
    writes = True

    @property
    def key(self) -> Hashable:
        return "attribute", id(self.value), self.name

    def emit(self, g: Codegen) -> None:
        new = self.value.attrs[self.name]
        if new is None:
            emit_deletion(g, self.value, self.name)
            return
        g.emit(new)
        g.emit(self.value)
        g.body.op("STORE_ATTR", self.name)


@final
class Tensor(Value):
    """A tensor; `fake` has its dtype, device, sizes and autograd state but no values.

    Inside of a function transform (`torch.func`) it may be a fake wrapped by the levels of the transform.
    """

    __slots__ = ("attrs", "fake", "original", "source")

    is_torch = True

    def __init__(self, fake: torch.Tensor, source: Source | None = None, original: torch.Tensor | None = None) -> None:
        assert isinstance(fake, FakeTensor) or is_wrapped(fake)
        self.fake = cast(FakeTensor, fake)
        self.source = source
        self.original = original
        self.attrs: dict[str, Value | None] = {}
        """Plain attributes that the program wrote; None where it deleted one."""

    def python_type(self) -> type:
        if self.original is not None:
            return type(self.original)
        return torch.nn.Parameter if isinstance(self.fake, torch.nn.Parameter) else torch.Tensor

    @property
    def is_made_parameter(self) -> bool:
        """Whether it is an `nn.Parameter` that the frame made: the region returns a plain tensor."""
        return self.original is None and isinstance(self.fake, torch.nn.Parameter)

    def torch_arg(self, s: CaptureState) -> object:
        return self.fake

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        if name in self.attrs:
            written = self.attrs[name]
            if written is None:
                raise s.error(AttributeError, f"'Tensor' object has no attribute '{name}'")
            return written
        if name == "__torch_function__" or replaced(s, self, name):
            return s.model.get_attr(s, self, name, site)
        if s.see is not None and (seen := seen_read(s, self, name)) is not None:
            return seen
        if name in METADATA_ATTRIBUTES:
            s.part(RegionInputs).note_asked(self, name)
            return s.wrap(getattr(self.fake, name), None)
        if name == "__class__":
            return s.wrap(self.python_type(), None)
        if name in READABLE and not is_wrapped(self.fake) and (self.fake.is_leaf or self.source is not None):
            s.part(RegionInputs).note_asked(self, name)
            return READABLE[name](s, self)
        if name == "grad_fn" and self.fake.is_leaf:
            s.part(RegionInputs).note_asked(self, "is_leaf")
            return s.const(None)
        if name in RECORDED_ATTRIBUTES:
            return record(s, getattr, [self, s.const(name)], {})
        found = s.classes.lookup(self.python_type(), name)
        if self.original is not None:
            claim_dict(s, self, content := self.original.__dict__)
            if name in content:
                return s.wrap(content[name], DictAttrSource(self.source, name) if self.source else None)
        s.hides_nothing(self, name)
        if found is None:
            s.part(RegionInputs).note_asked(self, name)
            raise s.error(AttributeError, f"'{self.type_name()}' object has no attribute '{name}'")
        if not callable(found[1]):
            if name == "_version":
                s.part(RegionInputs).refuse_joined(self.fake)
            raise UnsupportedAttribute(name=name, type="Tensor", why="it is not supported")
        return TensorMethod(self, name)

    def set_attr(self, s: CaptureState, name: str, value: Value | None, site: CallSite = NOT_RESUMABLE) -> None:
        """Plain attributes, whose names torch does not define, and some of torch's."""
        if s.see is not None and hasattr(torch.Tensor, name):
            raise UnsupportedAttribute(name=name, type="Tensor", why="a mode of the program sees that it is set")
        s.part(RegionInputs).note_asked(self, name)
        if name in SETTABLE and not replaced(s, self, name):
            SETTABLE[name](s, self, value)
            return
        if s.classes.lookup(self.python_type(), name) is not None or self.python_type() not in PLAIN_TYPES:
            raise UnsupportedAttribute(name=name, type="Tensor", why="setting torch's attributes is not supported")
        s.counters.unguarded += 1  # a repeated layer would write to another tensor
        if self.original is not None:
            claim_dict(s, self, self.original.__dict__)
        if value is None and (name not in self.attrs or self.attrs[name] is None):
            self.get_attr(s, name)
        self.attrs[name] = value
        s.effects.note(TensorAttributeEffect(self, name))

    def get_item(self, s: CaptureState, key: Value, site: CallSite = NOT_RESUMABLE) -> Value:
        if replaced(s, self, "__getitem__"):
            return super().get_item(s, key, site)
        if s.see is not None:
            return record(s, operator.getitem, [self, key], {})
        base, rest = selected(s, self, index_value(s, key, self.fake.device))
        return base if rest is None else record(s, operator.getitem, [base, rest], {})

    def set_item(self, s: CaptureState, key: Value, value: Value, site: CallSite = NOT_RESUMABLE) -> None:
        if replaced(s, self, "__setitem__"):
            super().set_item(s, key, value, site)
        elif s.see is not None:
            record(s, operator.setitem, [self, key, value], {})
        else:
            if (will_write := s.part(Overrides).will_write) is not None:
                will_write(s, self)
            base, rest = selected(s, self, index_value(s, key, self.fake.device))
            record(s, operator.setitem, [base, s.const(...) if rest is None else rest, value], {})

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        if replaced(s, self, "__iter__"):
            return super().iterate(s, site)
        if s.see is not None:  # modes see the calls that it makes
            return s.wrap(torch.Tensor.__iter__, None).call(s, [self], {})
        if self.fake.dim() == 0:
            raise s.error(TypeError, "iteration over a 0-d tensor")
        if s.part(Overrides).under_modes is not None:  # operators are seen: eager makes one
            return record(s, "unbind", [self, s.const(0)], {}).iterate(s)
        count = self.length(s)
        items = [record(s, operator.getitem, [self, s.const(i)], {}) for i in range(count)]
        return List(items).iterate(s)

    def length(self, s: CaptureState) -> int:
        if replaced(s, self, "__len__"):
            return super().length(s)
        if s.see is not None and (seen := s.see(s, "__len__", [self], {}, True)) is not None:
            return int(seen.constant(s))
        if self.fake.dim() == 0:
            raise s.error(TypeError, "len() of a 0-d tensor")
        return int(self.fake.shape[0])

    def truth(self, s: CaptureState) -> bool:
        return tensor_truth(s, self, "a truth test")

    def key(self, s: CaptureState) -> Token:
        s.identities.keys[id(self)] = self
        return self

    def emit(self, g: Codegen) -> None:
        if is_wrapped(self.fake):
            raise UnsupportedValue(type="Tensor", why="it belongs to a function transform that has ended")
        if not self.is_made_parameter:
            g.tensor(self.fake)
            return
        g.body.const(torch.nn.Parameter)
        g.tensor(self.fake)
        g.body.const(self.fake.requires_grad).call(2)
        g.remember(self)


def seen_read(s: CaptureState, value: Tensor, name: str) -> Value | None:
    """What a mode of the program answers to a read of an attribute that torch computes."""
    getter = getattr(torch.Tensor, name, None)
    if s.see is None or not isinstance(getter, types.GetSetDescriptorType | property):
        return None
    return s.see(s, getter.__get__, [value], {}, True)


READABLE: dict[str, Callable[[CaptureState, Tensor], Value]] = {}
"""How attributes of leaves are read that the program may write."""
SETTABLE: dict[str, Callable[[CaptureState, Tensor, Value | None], None]] = {}
"""How attributes that torch defines are set; None deletes."""


@final
@dataclass(frozen=True)
class RegionInput:
    """A tensor from outside that the region gets."""

    fake: FakeTensor
    source: Source
    real: torch.Tensor


@final
@dataclass(frozen=True)
class FinalCheck:
    """What is asked of the results of the region about a call of `function`: why a break must come before it, or ""."""

    ask: Callable[[list[FakeTensor]], str]
    function: str
    step: PastStep


@final
@dataclass
class RegionInputs:
    """The tensors of one capture; fakes by `id`."""

    tensors: list[RegionInput] = field(default_factory=list)
    """In the order in which they were found."""
    by_fake: dict[int, Tensor] = field(default_factory=dict)
    asked_is_leaf: set[int] = field(default_factory=set)
    asked: list[Tensor] = field(default_factory=list)
    """Those of which something was asked, or set, that a copy would answer otherwise."""
    set_on: list[FakeStorage] = field(default_factory=list)
    """What tensors held when their memory or autograd's state of them was set, in order."""
    asked_kind: list[Tensor] = field(default_factory=list)
    """Those of which it was asked whether they are parameters."""
    asked_of_made: int = 0
    """How often it was asked whether a tensor that the region makes has a gradient."""
    joined: dict[int, ValueNeeded] = field(default_factory=dict)
    """Memory (by `id`) that sides of an `if` have written: what is raised where its version is read."""
    in_place: list[PastStep] = field(default_factory=list)
    """Where calls changed tensors."""
    changed_at: dict[int, PastStep] = field(default_factory=dict)
    """Where memory (by `id`) was changed first."""
    leaves: list[tuple[torch.Tensor, PastStep]] = field(default_factory=list)
    """Leaves that were made in the region, and where."""
    final_checks: list[FinalCheck] = field(default_factory=list)

    def note_asked(self, tensor: Tensor, name: str) -> None:
        if name in SETS_STATE and not is_wrapped(tensor.fake):
            self.set_on.append(tensor.fake.storage_view.storage)
        if name == "is_leaf":
            self.asked_is_leaf.add(id(tensor.fake))
        if name not in METADATA_ATTRIBUTES or (name == "is_leaf" and tensor.fake.requires_grad):
            self.asked.append(tensor)
        self.asked_of_made += name in ("is_leaf", "requires_grad") and tensor.original is None

    def refuse_joined(self, fake: FakeTensor) -> None:
        if not is_wrapped(fake) and (needed := self.joined.get(id(fake.storage_view.storage))) is not None:
            raise needed


def replaced(s: CaptureState, value: Value, name: str) -> bool:
    """Whether the program defines `name` on the class of a tensor, which otherwise is torch's; guarded either way."""
    if not isinstance(value, Tensor):
        return False
    found = s.classes.lookup(value.python_type(), name)
    return found is not None and defined_by_program(found[1])


def defined_by_program(raw: object) -> bool:
    """Whether an entry of a tensor class's dict is neither a C function nor a Python function of torch."""
    raw = raw.fget if type(raw) is property else raw
    if type(raw) in (staticmethod, classmethod):
        raw = cast("classmethod[object, ..., object]", raw).__func__
    if type(raw) is types.FunctionType:
        return str(raw.__globals__.get("__name__")).partition(".")[0] != "torch"
    return type(raw) is property or type(raw) in PLAIN_ENTRIES


def here(s: CaptureState) -> PastStep:
    """The current step, to break in front of it later."""
    return past_step(running_frame(s))


def tensor_truth(s: CaptureState, value: Tensor, statement: str) -> bool:
    """`bool(tensor)`, if it is known while tracing, or if one side of the jump raises."""
    if replaced(s, value, "__bool__"):
        return Value.truth(value, s)
    if is_wrapped(value.fake):
        raise DataDependentBranch(statement=statement)
    truth = assumed_truth(s, value.fake)
    if truth is None:  # of an `if` both sides are tried before it is assumed that floats are finite
        truth = known_truth(s, value.fake) if statement == "if" else likely_truth(s, value.fake)
    if truth is None:
        raise DataDependentBranch(statement=statement)
    return truth


def tensor_value(s: CaptureState, value: Tensor, name: str) -> Value:
    """`tensor.item()` and the like, if the value is known while tracing; truth values may be speculated on."""
    s.counters.unguarded += 1
    if is_wrapped(value.fake):
        raise DataDependentValue(operation=f"Tensor.{name}")
    if name in TRUTH_METHODS and (name == "__bool__" or value.fake.dtype is torch.bool):
        truth = known_truth(s, value.fake)
        if truth is not None:
            return s.const(truth)
    known = s.recorder.constant_value(value.fake) if name in PLAIN_METHODS else None
    asks_number = known is None and name in NUMBER_METHODS and not is_needed(s)
    if asks_number and (found := data_number(s, value, name)) is not None:
        return found
    if known is None and name in NUMBER_METHODS:
        known = speculated_value(s, value.fake)
    if known is None or known.numel() != 1:  # of several elements eager raises its own error
        raise DataDependentValue(operation=f"Tensor.{name}")
    return s.wrap(getattr(known, name)(), None)


def data_number(s: CaptureState, value: Tensor, name: str) -> Value | None:
    """The only element of a tensor as a symbolic number; None for dtypes that have none."""
    dtype, is_float = value.fake.dtype, value.fake.dtype.is_floating_point
    if dtype.is_complex or any(size != 1 for size in value.fake.shape) or (is_float and name in WHOLE_METHODS):
        return None
    to_integer = partial(record, s, "to", [value, s.const(torch.int64)], {})
    read = partial(record, s, "item", [value], {})
    number = number_read(
        s, value.fake, read if dtype is not torch.bool else lambda: record(s, "item", [to_integer()], {})
    )
    if dtype is torch.bool and name == "item" and isinstance(number, Symbolic):
        return Symbolic(number.node == 1, number=number)
    return s.wrap(torch.sym_float(number.torch_arg(s)), None) if name == "__float__" and not is_float else number


def index_value(s: CaptureState, key: Value, device: torch.device) -> Value:
    """An index with each integer tensor of rank 0 as the number that eager takes it for, and a range as a tensor."""
    if isinstance(key, Tuple):
        return Tuple([index_value(s, part, device) for part in key.items(s)])
    if isinstance(key, Slice):
        return Slice([index_value(s, part, device) for part in key.parts])
    if isinstance(key, IndexRange):
        options = {"dtype": s.const(torch.int64), "device": s.const(device)}
        return record(s, torch.arange, key.args, options)
    if not isinstance(key, Tensor) or is_wrapped(key.fake) or key.fake.dim() or key.fake.dtype not in INDEX_DTYPES:
        return AS_INDEX[type(key)](s, key) if type(key) in AS_INDEX else key
    return key.get_attr(s, "item").call(s, [], {})


def selected(s: CaptureState, tensor: Tensor, key: Value) -> tuple[Value, Value | None]:
    """`tensor` at those indices of `key` that are symbols, and the rest of the key; None: nothing.

    Torch's own indexing takes symbols in slices only, and asks for the value of a truth value: it is a mask of one row.
    """
    if isinstance(key, Tensor) and not is_wrapped(key.fake) and not key.fake.dim() and key.fake.dtype is torch.bool:
        row, mask = [record(s, "unsqueeze", [value, s.const(0)], {}) for value in (tensor, key)]
        return row, mask
    parts = list(key.items(s)) if isinstance(key, Tuple) else [key]
    if not any(is_symbol(part) for part in parts) or not all(takes_one_dimension(part) for part in parts):
        return tensor, key
    base: Value = tensor
    for dim in reversed(range(len(parts))):
        if is_symbol(parts[dim]):
            base = record(s, "select", [base, s.const(dim), parts.pop(dim)], {})
    return base, Tuple(parts) if parts else None


def is_symbol(part: Value) -> bool:
    return isinstance(part, Symbolic) and type(part.node) is torch.SymInt


def takes_one_dimension(part: Value) -> bool:
    """Whether it is an integer or a slice."""
    return isinstance(part, Slice | Symbolic) or type(part.real()) in (int, slice)


def note_data_numbers(s: CaptureState, args: Args, result: object, before: int) -> None:
    """Note the numbers that a call made from data: sizes of its results, or an item."""
    if isinstance(result, torch.SymFloat | torch.SymInt):
        value = result.node.value
        number = value.args[0] if isinstance(value, Real) else value
        if isinstance(number, Given | Symbol) and isinstance(args[0], Tensor):
            number_made(s, number, args[0], args[0].fake, None)
            return
    for symbol in note_data_sizes(s, result, s.recorder.env.unbacked[before:]):
        number_hidden(s, symbol)


def note_data_sizes(s: CaptureState, result: object, made: list[Symbol]) -> list[Symbol]:
    """Note which of the symbols `made` are sizes of the results of a call; the others."""
    unknown = frozenset(made)
    for place, tensor in tensors_of(result) if made else ():
        for dim, size in enumerate(tensor.storage_view.spec.sizes):
            if isinstance(size, Expr) and not size.free_symbols().isdisjoint(unknown):
                size_made(s, place, dim)
            if isinstance(size, Symbol) and size in made:
                made.remove(size)
                number_made(s, size, from_torch(s, tensor), tensor, dim)
    return made


def tensors_of(result: object, place: Place = ()) -> list[tuple[Place, FakeTensor]]:
    """The tensors among the results of a torch call."""
    if isinstance(result, FakeTensor):
        return [(place, result)]
    parts = enumerate(result) if isinstance(result, list | tuple) else ()
    return [found for index, part in parts for found in tensors_of(part, (*place, index))]


def may_be_inference(s: CaptureState) -> bool:
    """Whether tensors that are made here may be inference tensors: in that mode, and views of such tensors."""
    given = [record.real for record in s.recorder.inputs if record.real is not None]
    return torch.is_inference_mode_enabled() or any(real.is_inference() for real in given)


@final
class TensorMethod(NamedMethod):
    """A bound method of a tensor."""

    __slots__ = ()
    owner: Tensor

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        name, tensor = self.name, self.owner
        if name in ("register_hook", "detach_"):
            s.part(RegionInputs).note_asked(tensor, name)
        if s.see is not None and (seen := s.see(s, name, [tensor, *args], kwargs, True)) is not None:
            return seen
        if name == "is_inference" and tensor.original is None and may_be_inference(s):
            raise UnsupportedCall(function="Tensor.is_inference", why="it depends on modes that are not recorded")
        if name in ("is_conj", "resolve_conj") and s.recorder.conjugates:
            if name == "is_conj":
                raise UnsupportedCall(function="Tensor.is_conj", why="conjugates in the region are computed at once")
            return record(s, "clone" if is_conjugate(s, tensor.fake) else name, [tensor], {})
        if name in LAYOUT and s.recorder.conjugates and is_conjugate(s, tensor.fake, of_other_layout=True):
            raise UnsupportedCall(function=f"Tensor.{name}", why="conjugates in the region are computed at once")
        if name in METADATA_METHODS:
            plain = [arg.torch_arg(s) for arg in args]
            if name == "is_inference" and tensor.original is not None:
                return s.const(tensor.original.is_inference())
            if name == "storage_offset":
                guard_offsets(s, tensor)
            named = {key: value.torch_arg(s) for key, value in kwargs.items()}
            try:
                with recording(s.recorder):  # outside of the mode, torch imports its trace to ask for symbolic sizes
                    found = getattr(tensor.fake, name)(*plain, **named)
                return s.wrap(found, None)
            except (IndexError, TypeError, RuntimeError) as error:
                raise TorchCallFailed(function=f"Tensor.{name}", why=str(error)) from error
        if name in VALUE_METHODS:
            if args or kwargs:
                raise UnsupportedCall(function=f"Tensor.{name}", why="it is given arguments")
            return tensor_value(s, tensor, name)
        if (handler := HANDLERS.get(HANDLED_METHODS.get(name))) is not None:
            refuse_unread(HANDLED_METHODS[name], handler, kwargs)
            return handler(s, [tensor, *args], kwargs)
        if name in PROTOCOL:
            return call_protocol(s, name, [tensor, *args], kwargs)
        if (handler := PYTHON_METHODS.get(name)) is not None:
            return handler(s, [tensor, *args], kwargs)
        return record(s, name, [tensor, *args], kwargs)


def number_input(s: CaptureState, real: int | float, source: Source) -> Value:
    """A number from outside that becomes an input of the region."""
    s.guard(source, GuardKind.TYPE_IS, s.reference(type(real)))
    name, is_truth = s.part(InputNames).name(source), type(real) is bool
    made = s.recorder.add_scalar(int(real) if is_truth else real, name, source)
    return Symbolic(made != 0, source, Symbolic(made)) if is_truth else Symbolic(made, source)


@final
@dataclass
class Overrides:
    """What a torch call does with tensors of subclasses (`subclass.py`); None until there is one."""

    call: Callable[[CaptureState, Target, Args, Kwargs], Value | None] | None = None
    under_modes: Callable[[CaptureState, Target, Args, Kwargs], Value] | None = None
    """Makes every call while dispatch modes of the program are entered (`builtins/dispatch_modes.py`)."""
    disabled: bool = False
    """Whether `__torch_function__` is skipped."""
    will_write: Callable[[CaptureState, Tensor], None] | None = None
    """Is told which tensor a call is about to change in place, in a side of a branch (`side_changes.py`)."""


def record(s: CaptureState, target: Target, args: Args, kwargs: Kwargs) -> Value:
    """Run `target` on fakes and wrap its result."""
    s.policy.check_time()
    overrides = s.part(Overrides)
    only_plain = overrides.call is None
    if (answer := intercepted(s, target, args, kwargs)) is not None:
        return answer
    first = args[0] if args and isinstance(args[0], Tensor) else None
    changes = changes_tensors(target, kwargs)
    if changes and first is not None and overrides.will_write is not None:
        overrides.will_write(s, first)
    plain = tuple([arg.torch_arg(s) for arg in args])
    named = {name: arg.torch_arg(s) for name, arg in kwargs.items()}
    if only_plain and overrides.call is not None:  # a list from outside holds the first of a subclass
        return record(s, target, args, kwargs)
    needed_now = bool(s.needed) and is_needed(s)
    if needed_now and not s.policy.speculate_values:
        raise DataDependentValue(operation=target_name(target))
    unbacked, conjugates = len(s.recorder.env.unbacked), len(s.recorder.conjugates)
    may_need = torch.is_grad_enabled() or target is set_data
    before = needing_gradients(s, first) if changes and may_need and target != "requires_grad_" else None
    try:
        result = call_on_fakes(s, target, plain, named)
    except (GraphBreak, SizesMatch):  # of a hook that autograd calls
        raise
    except Exception as error:
        if any(isinstance(value, Symbolic) for value in (*args, *kwargs.values())):
            # It may take plain numbers only: guard their values.
            return record(s, target, [settled(s, arg) for arg in args], {k: settled(s, v) for k, v in kwargs.items()})
        raise failure(s, target, error) from error
    if len(s.recorder.env.unbacked) != unbacked or isinstance(result, torch.SymFloat):
        note_data_numbers(s, args, result, unbacked)
    if needed_now and not all([speculated_size(s, symbol) for symbol in s.recorder.env.unbacked[unbacked:]]):
        raise DataDependentValue(operation=target_name(target)).of_recorded_call()
    after = needing_gradients(s, first) if before is not None else before
    if before != after and (s.policy.carries is not None or ceases(before, after)):
        why = "it makes an input of the region require gradients, or ceases to"
        raise UnsupportedCall(function=target_name(target), why=why).of_recorded_call()
    note_for_region(s, target, kwargs, result, first if changes else None, changes, conjugates)
    return from_torch(s, result)


def intercepted(s: CaptureState, target: Target, args: Args, kwargs: Kwargs) -> Value | None:
    """The answer of a mode or a subclass to a torch call, in eager's order; None where the call is torch's own."""
    if s.function_modes and target is not getattr and getattr(target, "__module__", None) not in UNSEEN:
        return seen_by_mode(s, target, args, kwargs)
    overrides = s.part(Overrides)
    if overrides.under_modes is not None:
        return overrides.under_modes(s, target, args, kwargs)
    return None if overrides.call is None else overrides.call(s, target, args, kwargs)


def note_for_region(
    s: CaptureState,
    target: Target,
    kwargs: Kwargs,
    result: object,
    first: Tensor | None,
    changes: bool,
    conjugates: int,
) -> None:
    """Note what the end of the region checks of a call: the conjugates made since there were `conjugates`, whether it
    changed tensors, and a leaf that it made."""
    inputs = s.part(RegionInputs)
    for made in s.recorder.conjugates[conjugates:]:
        check = partial(is_seen_as_view, made)
        inputs.final_checks.append(FinalCheck(check, target_name(target), here(s)))
    if changes:
        inputs.in_place.append(here(s))
        if first is not None and not is_wrapped(first.fake):
            inputs.changed_at.setdefault(id(first.fake.storage_view.storage), here(s))
    sets_need = target in ("requires_grad_", torch.nn.Parameter) or "requires_grad" in kwargs
    if sets_need and isinstance(result, torch.Tensor) and result.requires_grad and not is_wrapped(result):
        inputs.leaves.append((result, here(s)))


def failure(s: CaptureState, target: Target, error: Exception) -> Exception:
    """What the capture raises for an error of a torch call on fakes."""
    if isinstance(error, NoHint | DataDependentSize) and (needed := value_needed(s, error)) is not None:
        return needed
    name = target if isinstance(target, str) else getattr(target, "__name__", repr(target))
    failed = TorchCallFailed.because_of(name, error)
    return failed.of_recorded_call() if s.recorder.wrote_and_failed else failed


UNSEEN = ("torch._C._functorch", accumulated_gradients.__module__)
"""Modules of functions that no mode sees."""
MODE_RULES: dict[tuple[str, str], Handler] = {}
"""What modes of torch do whose code is not interpreted, by module and class."""


def seen_by_mode(s: CaptureState, target: Target, args: Args, kwargs: Kwargs) -> Value:
    """The answer of the innermost mode to a torch call; calls within it go to the next mode."""
    if s.see is not None and (seen := s.see(s, target, args, kwargs, True)) is not None:
        return seen
    mode = s.function_modes.pop()
    note_innermost(s)
    cls = mode.python_type()
    name = target if isinstance(target, str) else target.__name__
    function: object = getattr(torch.Tensor, name) if isinstance(target, str) else target
    if getattr(operator, name, None) is target:
        plain = getattr(torch.Tensor, name, None)
        function = getattr(torch.Tensor, f"__{name.rstrip('_')}__") if plain is None else plain
    given: Args = [s.wrap(function, None), Tuple([]), Tuple(args)]
    if kwargs:
        given.append(Dict({key: (s.const(key), value) for key, value in kwargs.items()}))
    try:
        if (rule := MODE_RULES.get((cls.__module__, cls.__qualname__))) is not None:
            return rule(s, [mode, *given], {})
        return mode.get_attr(s, "__torch_function__").call(s, given, {})
    finally:
        s.function_modes.append(mode)
        note_innermost(s)


def recorded(function: Target) -> Handler:
    """The handler of a function whose call is one torch call."""

    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        return record(s, function, args, kwargs)

    return handler


def changes_tensors(target: Target, kwargs: Kwargs) -> bool:
    """Whether a torch call may write to its arguments."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return changes_state(name) or name in IN_PLACE or "out" in kwargs


def needing_gradients(s: CaptureState, changed: Tensor | None = None) -> list[bool]:
    """Which inputs require gradients now, and whether a view of an input that is to be changed does."""
    inputs = s.part(RegionInputs).tensors
    found = [tensor.fake.requires_grad for tensor in inputs]
    if changed is None or is_wrapped(changed.fake):
        return found
    storage = changed.fake.storage_view.storage
    if any(tensor.fake.storage_view.storage is storage for tensor in inputs):
        found.append(changed.fake.requires_grad)
    return found


def ceases(before: list[bool] | None, after: list[bool] | None) -> bool:
    """Whether an input does not require gradients any more."""
    return any([was and not now for was, now in zip(before or (), after or (), strict=True)])


def guard_offsets(s: CaptureState, tensor: Tensor) -> None:
    """Guard where the inputs that share the tensor's storage begin."""
    if is_wrapped(tensor.fake):
        return
    storage = tensor.fake.storage_view.storage
    for found in s.part(RegionInputs).tensors:
        if found.fake.storage_view.storage is storage:
            s.guard(OffsetSource(found.source), GuardKind.EQUALS, found.real.storage_offset())


def settled(s: CaptureState, value: Value) -> Value:
    """A symbolic number as its value in this call."""
    return s.const(value.constant(s)) if isinstance(value, Symbolic) else value


def from_torch(s: CaptureState, result: object) -> Value:
    """The value of the result of a torch call on fakes."""
    if isinstance(result, torch.Tensor):
        known = s.part(RegionInputs).by_fake
        value = known.get(id(result))
        if value is None:
            value = known[id(result)] = Tensor(result)
        return value
    return s.wrap(result, None)


@wraps(int, float, bool)
def wrap_number(s: CaptureState, real: int | float, source: Source | None) -> Value:
    """A number that changed since the last compile is an input of the region."""
    if s.policy.scalars is not None and source is not None and s.policy.scalars(real, source):
        return number_input(s, real, source)
    return Constant(real, source)


@wraps(torch.SymInt, torch.SymFloat, torch.SymBool)
def wrap_symbolic(s: CaptureState, real: torch.SymInt | torch.SymFloat | torch.SymBool, source: Source | None) -> Value:
    return Symbolic(real, source)


@wraps(torch.Tensor, torch.nn.Parameter, FakeTensor)
def wrap_tensor(s: CaptureState, real: torch.Tensor, source: Source | None) -> Value:
    """An input of the region; the same tensor on another path is the same value."""
    if s.recorder.is_fake(real):
        return from_torch(s, real)
    wrap = OF_LAYOUT.get(real.layout, _input)
    return s.identities.same_object(real, source, lambda: wrap(s, real, source))


OF_LAYOUT: dict[torch.layout, Callable[[CaptureState, torch.Tensor, Source | None], Value]] = {}
"""What becomes of tensors from outside that are not dense."""


@wraps(torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)
def wrap_uninitialised(s: CaptureState, real: torch.Tensor, source: Source | None) -> Value:
    raise UninitialisedParameter(path=source.text() if source is not None else "a parameter")


def _input(s: CaptureState, real: torch.Tensor, source: Source | None) -> Tensor:
    if source is None:
        return Tensor(s.recorder.add_constant(real), None, real)
    inputs, name = s.part(RegionInputs), s.part(InputNames).name(source)
    with reading(real, source):
        fake = s.recorder.add_tensor(real, name, source, s.policy.dims(real, source))
    value = inputs.by_fake[id(fake)] = Tensor(fake, source, real)
    inputs.tensors.append(RegionInput(value.fake, source, real))
    return value
