"""The text of a tensor or of a number that is not known while tracing, which is made only if the program uses it.
A list of the numbers in a tensor whose size data decide is likewise, and so is a number rounded to some digits.

    check(n == m, f"{n} tokens, {m} features")       the text is for an error that is not raised
    self.log.append("step %d" % n)                   transformed code makes the text: no number is fixed
    print("loss", loss)                              transformed code makes the text of the tensor of the region
    return rows.tolist()                             transformed code makes the list
    return {"loss": round(loss.item(), 4)}           transformed code rounds the number

While nothing reads the text, the call stays in the graph and no size is fixed. Where it is only kept or written,
transformed code makes it behind the region, of the numbers of each call and of tensors that were not changed since.
Where something reads it, the capture begins again, and makes the text where the program does.
"""

from __future__ import annotations

import operator
import string
from collections.abc import Callable, Mapping, Sequence
from typing import final

import torch

from kiln.capture.interpreter.breaks import PastStep, SideEffectCall
from kiln.capture.interpreter.core import NOT_RESUMABLE, CallSite, CaptureState, Codegen, Token, Value
from kiln.capture.interpreter.data_values import LENGTH, Instruction, ValueNeeded, is_needed, past_step
from kiln.capture.interpreter.frame import running_frame
from kiln.capture.interpreter.variables.array import TracedArray
from kiln.capture.interpreter.variables.bound_method import BoundMethod
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.sequence import List, Spread, Tuple
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import Overrides, Tensor, replaced
from kiln.graph.ir.node import Node
from kiln.graph.trace.fake import is_wrapped
from kiln.support.records import dataclass

CONVERTERS: dict[str, Callable[[object], str]] = {"s": str, "r": repr, "a": ascii}
KEEP_TEXTS = frozenset(
    (
        "center",
        "expandtabs",
        "ljust",
        "lower",
        "lstrip",
        "replace",
        "rjust",
        "rstrip",
        "strip",
        "title",
        "upper",
        "zfill",
    )
)
"""Methods of texts that make texts of them."""
PRINTING = ("__format__", "__repr__", "__str__")


@final
@dataclass(frozen=True)
class Reading:
    """A tensor in a text, and its value when the text was asked for."""

    tensor: Tensor
    node: Node


@final
@dataclass(frozen=True, slots=True, eq=False)
class Deferred(Value):
    """`make(*args)`, a string, its length or a list of numbers, which is not known; `made_at` is where it would be."""

    made_at: Instruction
    step: PastStep
    make: Callable[..., object]
    args: Sequence[Value]
    readings: Sequence[Reading] = ()
    cls: type = str
    is_deferred: bool = True
    """Not a list, which may be changed behind the region."""

    def needed(self) -> ValueNeeded:
        return ValueNeeded(self.made_at, self.step, LENGTH if self.cls is list else "")

    def constant(self, s: CaptureState) -> object:
        raise self.needed()

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        if self.cls is str and name in KEEP_TEXTS:
            return BoundMethod(s.wrap(getattr(str, name), None), self)
        raise self.needed()

    def get_item(self, s: CaptureState, key: Value, site: CallSite = NOT_RESUMABLE) -> Value:
        raise self.needed()

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        raise self.needed()

    def length(self, s: CaptureState) -> int:
        raise self.needed()

    def truth(self, s: CaptureState) -> bool:
        raise self.needed()

    def key(self, s: CaptureState) -> Token:
        raise self.needed()

    def is_unchanged(self, s: CaptureState) -> bool:
        """Whether the tensors have the values that they had."""
        return all([s.recorder.node_of(found.tensor.fake) is found.node for found in self.readings])

    def replaced(self, s: CaptureState, replace: Callable[[Value], Value]) -> Deferred:
        """The same of other values, which are read as they are now."""
        args, found = [replace(arg) for arg in self.args], [replace(reading.tensor) for reading in self.readings]
        return Deferred(self.made_at, self.step, self.make, args, readings_of(s, found), self.cls, self.is_deferred)

    def emit(self, g: Codegen) -> None:
        if not self.is_unchanged(g.state):
            raise self.needed()
        g.make(self, self.make, *self.args)


def deferred_text(s: CaptureState, value: Value, conversion: str = "", spec: str = "") -> Value | None:
    """A field of an f-string whose text is not that of a constant; None where it is, or where Python needs it."""
    made: Value | None = plain_number(s, value) if conversion in ("", "s") else value
    if conversion and made is not None:
        made = text_of(s, CONVERTERS[conversion], [made])
    return None if made is None else text_of(s, format, [made, s.const(spec)])


def plain_number(s: CaptureState, value: Value) -> Value:
    """A scalar of NumPy as the number of Python with the same text (`repr` has another); other values as they are."""
    if not isinstance(value, TracedArray) or not value.is_scalar or is_needed(s):
        return value
    if value.number is not None:
        return value.number
    like_python = value.tensor.fake.dtype in (torch.float64, torch.int64)
    return value.tensor.get_attr(s, "item").call(s, [], {}) if like_python else value


def text_of(s: CaptureState, make: Callable[..., object], args: Sequence[Value]) -> Value | None:
    """`make(*args)`, if numbers, tensors or deferred texts among the arguments (or in built-in containers of them)
    decide it, and all else is constant; None where Python needs the text, or it is not that of a string."""
    parts = [part for arg in args for part in (arg.items(s) if type(arg) is Tuple else [arg])]
    if all(part.is_constant for part in parts):
        return None
    if (constant := text_of_known(s, make, args)) is not None:
        return constant
    if is_needed(s):
        return None
    found: list[Value] = []
    kept = [snapshot(s, arg, found) for arg in args]
    given = [arg for arg in kept if arg is not None]
    if not found or len(given) < len(kept):
        return None
    try:
        known = make(*[sample(s, arg) for arg in given])
    except Exception:  # which the program sees where it makes the text
        return None
    if type(known) is not str:
        return None
    frame = running_frame(s)
    return Deferred((frame.code, frame.at), past_step(frame), make, given, readings_of(s, found))


def text_of_format(s: CaptureState, args: Sequence[Value], named: Mapping[str, Value]) -> Value | None:
    """`args[0].format(*args[1:], **named)` likewise. What no field names need not be known."""
    if not args or not args[0].is_constant or type(args[0].real()) is not str:
        return None
    text = args[0].constant(s)
    try:
        fields = [str(field) for _, field, _, _ in string.Formatter().parse(str(text)) if field is not None]
    except ValueError:  # which the program sees
        return None
    used = {name: value for name, value in named.items() if any([field.startswith(name) for field in fields])}
    given = Dict({key.key(s): (key, value) for name, value in used.items() for key in [s.const(name)]})
    return text_of(s, formatted, [args[0], Tuple(list(args[1:])), given]) if used else text_of(s, str.format, args)


def formatted(text: str, args: Sequence[object], named: Mapping[str, object]) -> str:
    """Called by transformed code."""
    return text.format(*args, **named)


def rounded_later(s: CaptureState, number: Value, digits: Value) -> Value | None:
    """`round(number, digits)` of a float that data decide; None where Python needs it."""
    if not isinstance(number, Symbolic) or number.python_type() is not float or is_needed(s):
        return None
    if not digits.is_constant or type(digits.real()) is not int:
        return None
    frame = running_frame(s)
    return Deferred((frame.code, frame.at), past_step(frame), round, [number, digits], cls=float)


def text_of_known(s: CaptureState, make: Callable[..., object], args: Sequence[Value]) -> Value | None:
    """The text where tensors among the arguments are computed from constants, such as `f"expert_{index}"`."""
    plain = list[object]()
    for arg in args:
        known = s.recorder.constant_value(arg.fake) if isinstance(arg, Tensor) and is_printed(s, arg) else None
        if known is None and not arg.is_constant:
            return None
        plain.append(arg.constant(s) if known is None else known)
    if any(isinstance(value, torch.Tensor) and value.device.type != "cpu" for value in plain):
        return None
    try:
        text = make(*plain)
    except Exception:  # which the program sees where it makes the text
        return None
    return s.const(text) if type(text) is str else None


def readings_of(s: CaptureState, found: Sequence[Value]) -> list[Reading]:
    held = [part.tensor if isinstance(part, TracedArray) and part.number is None else part for part in found]
    return [Reading(part, s.recorder.node_of(part.fake)) for part in held if isinstance(part, Tensor)]


def snapshot(s: CaptureState, value: Value, found: list[Value]) -> Value | None:
    """What has the text of `value` also when the program has changed its containers; None if that is not known.

    Tensors, numbers and texts in it that are not known while tracing are added to `found`.
    """
    if value.is_constant:
        return value
    if isinstance(value, Symbolic | Deferred) or is_printed(s, value) or is_number_of_numpy(value):
        found.append(value)
        return value
    cls = value.python_type()
    if isinstance(value, List) and cls is list:
        items = kept_items(s, value.items(s), found)
        return None if items is None else List(items)
    if isinstance(value, Tuple) and cls in (tuple, torch.Size):
        items = kept_items(s, value.items(s), found)
        return None if items is None else Tuple(items, cls)
    if isinstance(value, Dict) and cls is dict:
        keys = value.items(s)
        items = kept_items(s, [item for _, item in keys.values()], found)
        if items is None or not all(key.is_constant for key, _ in keys.values()):
            return None
        return Dict({token: (key, item) for (token, (key, _)), item in zip(keys.items(), items, strict=True)})
    return None


def kept_items(s: CaptureState, items: Sequence[Value], found: list[Value]) -> list[Value] | None:
    made: list[Value] = []
    for item in items:
        kept = snapshot(s, item, found)
        if kept is None:
            return None
        made.append(kept)
    return made


def is_printed(s: CaptureState, value: Value) -> bool:
    """Whether torch itself makes the text of a tensor."""
    if not isinstance(value, Tensor) or type(value) is not Tensor or is_wrapped(value.fake):
        return False
    seen = s.function_modes or s.part(Overrides).call is not None or s.part(Overrides).under_modes is not None
    return not seen and not any(replaced(s, value, name) for name in PRINTING)


def is_number_of_numpy(value: Value) -> bool:
    return isinstance(value, TracedArray) and value.is_scalar


def sample(s: CaptureState, value: Value) -> object:
    """A value that makes a text of the same form as that of the call: whether that raises is the same in all calls."""
    if isinstance(value, Deferred):
        return value.make(*[sample(s, arg) for arg in value.args])
    if isinstance(value, Tuple | List):
        return value.cls([sample(s, item) for item in value.items(s)])
    if isinstance(value, Dict):
        return {key.constant(s): sample(s, item) for key, item in value.items(s).values()}
    if isinstance(value, Tensor):
        return torch.ones([1] * value.fake.dim(), dtype=value.fake.dtype, device="cpu")
    if isinstance(value, TracedArray):
        return value.example_of_call()
    if isinstance(value, Symbolic):
        return value.node.node.hint if value.node.node.has_hint() else value.python_type()(1)
    return value.constant(s)


def joined(s: CaptureState, function: Callable[..., object], left: Value, right: Value) -> Value | None:
    """`left + right` and `left % right` where one is the text of a number, or the text has one."""
    if function not in (operator.add, operator.mod):
        return None
    if not issubclass(left.python_type(), str) or (left.is_constant and type(left.real()) is not str):
        return None
    return text_of(s, function, [left, right])


def written(s: CaptureState, value: Value) -> Value | None:
    """What stands for `value` in a message that is written later; None if it may change, or its class is the program's.

    An object with the text that `object` gives is written by its name and address.
    """
    found: list[Value] = []
    value = plain_number(s, value)
    made = snapshot(s, value, found)
    if made is None and isinstance(value, Object) and not is_needed(s):
        own = [s.classes.lookup(value.cls, name) for name in PRINTING]
        if all(entry is not None and entry[0] is object for entry in own):
            s.guard_type(value)
            return value
    if made is None or not found or (made is value and not isinstance(value, Tensor)):
        return made
    if is_needed(s):
        return None
    frame = running_frame(s)
    return Deferred((frame.code, frame.at), past_step(frame), unchanged, [made], readings_of(s, found))


def unchanged(value: object) -> object:
    """Called by transformed code."""
    return value


def extend_list(s: CaptureState, target: List, items: Value) -> None:
    """`target.extend(items)`. What is made behind the region is added there."""
    if isinstance(items, Deferred) and items.cls is list and not s.policy.whole:
        target.append(s, Spread(items, items.needed()))
    else:
        target.extend(s, items)


def refuse_repeated(s: CaptureState, function: str) -> None:
    """Break in front of a message in a checkpoint, which eager writes again in the backward."""
    if s.recorder.region:
        raise SideEffectCall(function=function, why="eager calls it again in the backward of the checkpoint")
