"""Guards as data: where a value is found, what must hold of it, and which user line asked.

    Guard(LocalSource("x"), GuardKind.TENSOR, tensor_expectation(x, sizes=(None, 768)))
        ->  "x is a Tensor of float32 on cpu, sizes [*, 768], strides [768, 1]"

`tree.py` builds the native tree that checks them. `GuardKind` says what `expected` holds, which is never an `id()`. A
live object (a class, a function's code) is an `ObjectRef`, written as an import path; a guard on an object without one
cannot be written.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import NamedTuple, final

import torch

from kiln.runtime.guards.constant import (
    Json,
    ObjectRef,
    constant_to_json,
    readable_constant,
    reference,
)
from kiln.runtime.guards.source import Source
from kiln.support.location import Location
from kiln.support.records import dataclass


@final
class GuardKind(enum.Enum):
    """What must hold of the value; in brackets what `expected` holds."""

    TYPE_IS = "type_is"  # [ObjectRef of the class] type(value) is it, not a subclass
    EQUALS = "equals"  # [constant] same type and value; nan equals nan, -0.0 differs from 0.0
    IS = "is"  # [ObjectRef] the same object
    IS_NONE = "is_none"  # [None]
    LENGTH = "length"  # [int] of a list, tuple, dict, set or string
    DICT_KEYS = "dict_keys"  # [tuple of constants] all keys, in order
    HAS_ATTR = "has_attr"  # [str] found in the instance's dict or on its type
    NO_ATTR = "no_attr"  # [str] found in neither
    ABSENT = "absent"  # [None] the last step of the source finds nothing: a name that no global shadows
    EMPTY_DICT = "empty_dict"  # [None] an empty dict or None: hooks
    TENSOR = "tensor"  # [TensorExpectation]
    TENSOR_ALIASES = "tensor_aliases"  # [AliasExpectation] of several sources; `source` is the first
    SHAPE_RELATION = "shape_relation"  # [ShapeRelation] of several sources; `source` is the first
    GLOBAL_STATE = "global_state"  # [GlobalState]; `source` is ignored
    FUNCTION_CODE = "function_code"  # [FunctionExpectation]
    SET_ITEMS = "set_items"  # [SetExpectation] all that a set or frozenset holds
    SET_HOLDS = "set_holds"  # [SetMember] whether it holds a constant


PLAIN_TENSOR = reference(torch.Tensor)
TENSOR_TYPES = {torch.Tensor: PLAIN_TENSOR, torch.nn.Parameter: reference(torch.nn.Parameter)}


@final
@dataclass(frozen=True, slots=True)
class TensorExpectation:
    """Metadata of a tensor. In `sizes` and `strides`, None is a dimension that may have any value.

    `keys` is the set of dispatch keys (`torch._C._dispatch_keys` as an integer). `strides=None`, `keys=0` and
    `is_leaf=None` check nothing.
    """

    dtype: torch.dtype
    device: torch.device
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...] | None = None
    requires_grad: bool = False
    is_leaf: bool | None = None
    keys: int = 0
    python_type: ObjectRef = PLAIN_TENSOR

    def text(self) -> str:
        sizes = ", ".join("*" if size is None else str(size) for size in self.sizes)
        parts = [
            f"a {getattr(self.python_type.value, '__name__', '?')} of {self.dtype} on {self.device}, sizes [{sizes}]"
        ]
        if self.strides is not None:
            parts.append("strides [" + ", ".join("*" if s is None else str(s) for s in self.strides) + "]")
        parts += ["requires grad"] * self.requires_grad
        if self.is_leaf is not None:
            parts.append("a leaf" if self.is_leaf else "not a leaf")
        return ", ".join(parts)


@final
@dataclass(frozen=True, slots=True)
class AliasExpectation:
    """`groups[i]` is the group of `sources[i]`: sources share iff their groups are equal.

    They share the tensor object (`by="object"`) or only its storage (`by="storage"`).
    """

    sources: tuple[Source, ...]
    groups: tuple[int, ...]
    by: str = "storage"

    def text(self) -> str:
        return f"the {self.by}s of {', '.join(s.text() for s in self.sources)} are shared as {list(self.groups)}"


@final
@dataclass(frozen=True, slots=True)
class ShapeRelation:
    """A relation between integers: `text` as `kiln.symbolic.Relation` prints it, each name bound to a source.

    Names stand for sizes, strides and offsets of tensors, or for Python ints. Operators: + - * // %
    min max, comparisons, `and` `or` `not`.
    """

    relation: str
    names: tuple[tuple[str, Source], ...]

    def text(self) -> str:
        return f"{self.relation}  with {', '.join(f'{name} = {s.text()}' for name, s in self.names)}"


@final
@dataclass(frozen=True, slots=True)
class GlobalState:
    """The state of torch, per thread or process, that changes the meaning of a program.

    `function_modes` and `dispatch_modes` count the stacks; `set_default_device` is a function mode. `cuda_device` is
    the current one, on which tensors are made by default. `attention_off`: attention back ends that are disabled, a bit
    each: math, flash, memory-efficient, cuDNN, overrideable. `saved_hooks`: hooks of saved tensors
    that may change values are on. `other` is not 0 if a mode is on that this class does not know; the region must then
    run eager.
    """

    grad_mode: bool
    inference_mode: bool
    autocast_cpu: torch.dtype | None
    autocast_cuda: torch.dtype | None
    default_dtype: torch.dtype
    deterministic: int
    function_modes: int
    dispatch_modes: int
    functorch: bool
    torch_function_off: int
    other: int
    cuda_device: int = 0
    attention_off: int = 0
    saved_hooks: bool = False

    def text(self) -> str:
        return ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


@final
@dataclass(frozen=True, slots=True)
class SetExpectation:
    """The items of a set: constants, and `ObjectRef`s, which are compared by identity.

    `ordered`: iteration gives them in this order, which for strings differs between processes.
    """

    items: tuple[object, ...]
    ordered: bool = False

    def text(self) -> str:
        items = [expected_text(item) for item in self.items]
        return f"{{{', '.join(items if self.ordered else sorted(items))}}}" + " in this order" * self.ordered


@final
@dataclass(frozen=True, slots=True)
class SetMember:
    """Whether an int, text or other plain constant is in a set."""

    item: object
    held: bool

    def text(self) -> str:
        return f"{'with' if self.held else 'without'} {self.item!r}"


@final
@dataclass(frozen=True, slots=True)
class FunctionExpectation:
    """A function identified by its code: a new closure over the same code passes.

    `code` is written by its contents; `module` names the function's globals. `defaults`, `keyword_defaults` and
    `closure` are counts.
    """

    code: ObjectRef
    defaults: int
    keyword_defaults: int
    closure: int
    module: str = ""

    def text(self) -> str:
        code = self.code.value
        if not isinstance(code, types.CodeType):  # read from a file
            return "a function with other code"
        return f"a function with the code of {code.co_qualname}, line {code.co_firstlineno}"


def function_expectation(function: types.FunctionType) -> FunctionExpectation:
    """What a guard on `function` expects of a later one."""
    return FunctionExpectation(
        ObjectRef("", function.__code__),
        len(function.__defaults__ or ()),
        len(function.__kwdefaults__ or ()),
        len(function.__closure__ or ()),
        str(function.__globals__.get("__name__", "")),
    )


def tensor_expectation(
    tensor: torch.Tensor,
    sizes: tuple[int | None, ...] | None = None,
    strides: tuple[int | None, ...] | None = None,
    *,
    is_leaf: bool = False,
) -> TensorExpectation:
    """What a guard on `tensor` expects; `sizes` and `strides` replace the static ones."""
    return TensorExpectation(
        tensor.dtype,
        tensor.device,
        tuple(tensor.shape) if sizes is None else sizes,
        tuple(tensor.stride()) if strides is None else strides,
        tensor.requires_grad,
        tensor.is_leaf if is_leaf else None,
        torch._C._dispatch_keys(tensor).raw_repr(),
        TENSOR_TYPES.get(type(tensor)) or reference(type(tensor)),
    )


@final
class Guard(NamedTuple):
    """`kind` with `expected` holds of the value at `source`; `location` says what asked for it.

    A tuple, because thousands are made and making a frozen dataclass takes eight times as long.
    """

    source: Source
    kind: GuardKind
    expected: object = None
    location: Location | None = None

    def text(self) -> str:
        """One line, readable."""
        return f"{self.source.text()}: {self.kind.value} {expected_text(self.expected)}".rstrip()


def expected_text(expected: object) -> str:
    """The readable form of what a guard holds."""
    if isinstance(expected, ObjectRef):
        if isinstance(expected.value, types.ModuleType):
            return f"module {expected.value.__name__}"
        return expected.path or repr(expected.value)
    text = getattr(expected, "text", None)
    if callable(text):
        return str(text())
    return "" if expected is None else repr(expected)


_EXPECTATIONS: dict[str, type] = {
    "tensor": TensorExpectation,
    "aliases": AliasExpectation,
    "relation": ShapeRelation,
    "state": GlobalState,
    "function": FunctionExpectation,
    "set": SetExpectation,
    "member": SetMember,
}
_TAGS = {kind: tag for tag, kind in _EXPECTATIONS.items()}
_FIELDS = {tag: tuple([field.name for field in fields(kind)]) for tag, kind in _EXPECTATIONS.items()}


SourceWriter = Callable[[Source], Json]
SourceReader = Callable[[Json], Source]


def _expected_to_json(value: object, write: SourceWriter) -> Json:
    if isinstance(value, Source):
        return {"source": write(value)}
    if type(value) is tuple:
        return {"tuple": [_expected_to_json(item, write) for item in value]}
    if (tag := _TAGS.get(type(value))) is not None:
        return {tag: [_expected_to_json(getattr(value, name), write) for name in _FIELDS[tag]]}
    return {"constant": constant_to_json(value)}


def _expected_from_json(data: Json, read: SourceReader) -> object:
    if data is None:
        return None
    assert isinstance(data, dict)
    ((tag, content),) = data.items()
    if tag == "source":
        return read(content)
    if tag == "constant":
        return readable_constant(content)
    assert isinstance(content, list)
    items = [_expected_from_json(item, read) for item in content]
    return tuple(items) if tag == "tuple" else _EXPECTATIONS[tag](*items)


def guards_to_json(guards: Iterable[Guard], write: SourceWriter) -> Json:
    """Guards as rows; each location is written once. Raises `NotSerialisable`."""
    numbers: dict[Location | None, int] = {}
    rows: list[Json] = []
    for guard in guards:
        expected = None if guard.expected is None else _expected_to_json(guard.expected, write)
        at = numbers.setdefault(guard.location, len(numbers))
        rows.append([write(guard.source), guard.kind._value_, expected, at])
    locations: list[Json] = [None if at is None else [at.file, at.line, at.function] for at in numbers]
    return {"guards": rows, "locations": locations}


def guards_from_json(data: Json, read: SourceReader) -> list[Guard]:
    """Inverse of `guards_to_json`, for explanations."""
    assert isinstance(data, dict)
    rows, written = data["guards"], data["locations"]
    assert isinstance(rows, list) and isinstance(written, list)
    locations = [Location(str(at[0]), int(str(at[1])), str(at[2])) if isinstance(at, list) else None for at in written]
    found = []
    for row in rows:
        assert isinstance(row, list)
        source, kind, expected, number = row
        held = _expected_from_json(expected, read)
        found.append(Guard(read(source), GuardKind(kind), held, locations[int(str(number))]))
    return found
