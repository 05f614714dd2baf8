"""Why a variant does not fit a call, in the user's terms.

failure = explain_failure(Guard(ItemSource(AttrSource(LocalSource("self"), "_modules"), "layer"), EQUALS, 3), "4", 4)
failure.text()      "self.layer is 4, and was 3 (read at model.py:41, in forward)"
failure.hint        what the user may do
"""

from __future__ import annotations

import builtins
import math
import operator
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import final

import torch

from kiln.capture.bytecode.resume import PARAMETER
from kiln.runtime.guards import source as sources
from kiln.runtime.guards.guard import (
    AliasExpectation,
    GlobalState,
    Guard,
    GuardKind,
    ShapeRelation,
    TensorExpectation,
    expected_text,
)
from kiln.runtime.guards.reference import ObjectRef
from kiln.runtime.guards.source import ItemSource, Source
from kiln.runtime.guards.state import current_state
from kiln.support.location import Location
from kiln.support.records import dataclass
from kiln.symbolic.expr import LARGEST_NUMBER

UNKNOWN = object()
"""The value where only its text is known."""
OWN_TABLES = frozenset(("_modules", "_parameters", "_buffers", "__dict__"))
"""Dicts whose items are attributes of the object."""


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """A guard that does not hold: what it is about, what was expected and is found, the line that read it, advice."""

    subject: str
    difference: str
    location: Location | None
    hint: str

    def text(self) -> str:
        read = f" (read at {self.location.text()})" if self.location and not self.location.in_compiler else ""
        return self.difference + read


def explain_failure(guard: Guard, described: str, value: object = UNKNOWN, names: Sequence[str] = ()) -> Failure:
    """`value` is what the guard saw, `described` its text by `GuardTree.explain`; `names` are those of `args[i]`."""
    subject, difference, hint = difference_of(guard, described, value)

    def renamed(text: str) -> str:
        return re.sub(r"\bargs\[(\d+)\]", lambda item: dict(enumerate(names)).get(int(item[1]), item[0]), text)

    return Failure(renamed(subject), renamed(difference), guard.location, hint)


def difference_of(guard: Guard, described: str, value: object) -> tuple[str, str, str]:
    """(subject, what differs, advice)."""
    kind, expected, subject = guard.kind, guard.expected, user_text(guard.source)
    found, hint = shown(value, described), HINTS.get(kind, "")
    match expected:
        case TensorExpectation():
            subject, before, found, hint = tensor_difference(subject, expected, value, found)
        case ShapeRelation() if FIXED.fullmatch(expected.relation) and isinstance(value, int):
            subject, before = relation_text(expected).split(" == ")
            found, hint = str(value), FIXED_HINT
        case ShapeRelation():
            subject, before, found = relation_text(expected), "true", "false"
        case AliasExpectation():
            return alias_difference(expected)
        case GlobalState():
            subject, before, found = state_difference(expected)
        case _ if kind is GuardKind.TYPE_IS:
            before = f"of class {class_text(expected)}"
            if value is not UNKNOWN:
                found = typed(value) if found.startswith("a ") else f"{found}, {typed(value)}"
        case _:
            before = expected_object(kind, expected)
            hint = equal_hint(value, expected) if kind is GuardKind.EQUALS else hint
    return subject, f"{subject} is {found}, and was {before}", hint


def typed(value: object) -> str:
    return f"of class {type(value).__qualname__}"


def class_text(expected: object) -> str:
    return expected_text(expected).replace(":", ".").removeprefix("builtins.")


def shown(value: object, described: str) -> str:
    """The value as the program would write it, without its code being run and without the data of tensors."""
    if isinstance(value, torch.Tensor):
        return f"a {type(value).__qualname__} ({dtype_text(value.dtype)}, {list(value.shape)}, {value.device})"
    if type(value) is types.BuiltinFunctionType:
        return builtin_text(value)
    if type(value) is int and described == "nothing":  # a number of a tensor, for which the tree has no object
        return str(value)
    return described


def expected_object(kind: GuardKind, expected: object) -> str:
    if isinstance(expected, ObjectRef) and type(expected.value) is types.BuiltinFunctionType:
        return builtin_text(expected.value)
    return WORDS.get(kind, "{}").format(expected_text(expected))


def builtin_text(function: types.BuiltinFunctionType) -> str:
    """`torch.sin`, or the name alone."""
    for module in (torch, torch.nn.functional, builtins, math, operator):
        if vars(module).get(function.__name__) is function:
            return f"{module.__name__}.{function.__name__}"
    return f"the built-in function {function.__name__}"


def dtype_text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def alias_difference(expected: AliasExpectation) -> tuple[str, str, str]:
    """Which of the tensors share an object or memory."""
    names = [user_text(source) for source in expected.sources]
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    many = "tensor" if expected.by == "object" else "memory"
    hint = HINTS[GuardKind.TENSOR_ALIASES]
    if len(set(expected.groups)) == len(expected.groups):
        told = f"{listed} are the same tensor" if many == "tensor" else f"{listed} share memory"
        return listed, f"{told}, and {'were not' if many == 'tensor' else 'did not'}", hint
    return listed, f"{listed} no longer share one {many} as they did", hint


def state_difference(expected: GlobalState) -> tuple[str, str, str]:
    """The settings of torch that differ, before and now."""
    now = current_state()
    changed = [field.name for field in fields(expected) if getattr(expected, field.name) != getattr(now, field.name)]
    before, after = (", ".join(f"{name}={getattr(state, name)}" for name in changed) for state in (expected, now))
    return "torch's state", before, after


def equal_hint(value: object, expected: object) -> str:
    """What to do about a constant that changed."""
    if isinstance(expected, bool) or isinstance(value, bool):
        return FLAG_HINT
    if isinstance(expected, int | float) and isinstance(value, int | float):
        return LARGE_HINT if isinstance(value, int) and abs(value) >= LARGEST_NUMBER else NUMBER_HINT
    return HINTS[GuardKind.EQUALS]


BEHIND_BASE: Mapping[type[Source], str] = {
    sources.AttrSource: "{0}.{1.name}",
    sources.DictAttrSource: "{0}.{1.name}",
    sources.ClassFieldSource: "{0}.{1.name}",
    sources.ClosureSource: "a variable of the function {0}",
    sources.TypeSource: "type({0})",
    sources.MethodFuncSource: "{0}",
    sources.ArraySource: "{0}",
    sources.AnswerSource: "{1.function.path}({0})",
    sources.MethodSelfSource: "{0}.__self__",
    sources.GradSource: "{0}.grad",
    sources.SizeSource: "{0}.size({1.dim})",
    sources.StrideSource: "{0}.stride({1.dim})",
    sources.KeysSource: "item {1.index} of {0}",
    sources.ValuesSource: "the value of item {1.index} of {0}",
}
"""A path in the words of a program: with that of its base, and its fields."""


INNER = re.compile(r"^(_inner_\d+_)+")
"""How resume functions call the variables of inlined frames."""


def user_text(source: Source) -> str:
    """The path as the program would write it."""
    match source:
        case sources.LocalSource():
            name = INNER.sub("", source.name)
            return "a value on the stack" if PARAMETER.match(name) or name.startswith("_kiln_") else name
        case sources.GlobalSource() | sources.CellSource() | sources.CellObjectSource() | sources.BuiltinSource():
            return source.name
        case sources.ImportSource():
            return source.module
        case ItemSource():
            return item_text(source)
    base: Source | None = getattr(source, "base", None)
    words = BEHIND_BASE.get(type(source))
    return source.text() if words is None or base is None else words.format(user_text(base), source)


def item_text(source: ItemSource) -> str:
    base, key = source.base, source.key
    if isinstance(base, sources.DictAttrSource | sources.AttrSource) and base.name in OWN_TABLES:
        return f"{user_text(base.base)}.{key}"
    return f"{user_text(base)}[{key!r}]"


def relation_text(relation: ShapeRelation) -> str:
    """With the names replaced by what they stand for."""
    names = {name: user_text(source) for name, source in relation.names}
    return re.sub(r"[A-Za-z_]\w*", lambda found: names.get(found[0], found[0]), relation.relation)


def tensor_difference(
    subject: str, expected: TensorExpectation, value: object, found: str
) -> tuple[str, str, str, str]:
    """(subject, expected, found, advice): the first property that differs."""
    if not isinstance(value, torch.Tensor):
        kind = getattr(expected.python_type.value, "__name__", "Tensor")
        sizes = sizes_text(expected.sizes)
        return subject, f"a {kind} ({dtype_text(expected.dtype)}, {sizes}, {expected.device})", found, ""
    for part, before, after, hint in properties(expected, value):
        if before != after:
            return part.format(subject), before, after, hint
    return f"the dispatch keys of {subject}", "others", str(torch._C._dispatch_keys(value)), TENSOR_HINT


def differences(guard: Guard, value: object) -> int:
    """In how many properties the value differs from what the guard expects."""
    if not isinstance(guard.expected, TensorExpectation) or not isinstance(value, torch.Tensor):
        return 1
    return sum(before != after for _, before, after, _ in properties(guard.expected, value))


def properties(expected: TensorExpectation, value: torch.Tensor) -> list[tuple[str, str, str, str]]:
    """(property, expected, found, advice) of a tensor guard, in the order in which they are compared."""
    wanted = torch._C.DispatchKeySet.from_raw_repr(expected.keys) if expected.keys else None
    rows = [
        ("type({})", str(getattr(expected.python_type.value, "__name__", "?")), type(value).__name__, TYPE_HINT),
        ("dtype of {}", dtype_text(expected.dtype), dtype_text(value.dtype), TENSOR_HINT),
        ("device of {}", str(expected.device), str(value.device), TENSOR_HINT),
        ("shape of {}", sizes_text(expected.sizes), fitted(expected.sizes, value.shape),
         SIZE_HINT if len(expected.sizes) == value.dim() else RANK_HINT),
        ("requires_grad of {}", str(expected.requires_grad), str(value.requires_grad), GRAD_HINT),
    ]  # fmt: skip
    if expected.strides is not None:
        strides = fitted(expected.strides, value.stride())
        rows.append(("stride of {}", sizes_text(expected.strides), strides, STRIDE_HINT))
    if expected.is_leaf is not None:
        rows.append(("{}.is_leaf", str(expected.is_leaf), str(value.is_leaf), TENSOR_HINT))
    for question, key in KEYS.items():
        if wanted is not None:
            keys = torch._C._dispatch_keys(value)
            rows.append((question, str(wanted.has(key)), str(keys.has(key)), TENSOR_HINT))
    return rows


def sizes_text(sizes: Sequence[int | None]) -> str:
    return f"[{', '.join('*' if size is None else str(size) for size in sizes)}]"


def fitted(expected: Sequence[int | None], found: Sequence[int]) -> str:
    """The text of `found`: that of `expected` where it fits."""
    fits = len(expected) == len(found) and all(
        before is None or before == after for before, after in zip(expected, found, strict=True)
    )
    return sizes_text(expected if fits else found)


KEYS = {
    "{}.is_conj()": torch._C.DispatchKey.Conjugate,
    "{}.is_neg()": torch._C.DispatchKey.Negative,
}
"""Questions about a tensor that a dispatch key answers."""
FIXED = re.compile(r"[a-z]\w* == -?\d+")
"""A relation that gives a number its only value."""
FIXED_HINT = (
    "the call at that line takes this number as it is (a window of pooling or `unfold`, a count of parts or turns,"
    " a key), so each value has a variant: let it have few values, or compile a function for each"
)
SIZE_HINT = "kiln.compile(dynamic=True), or torch._dynamo.mark_dynamic on the input, compiles once for all sizes"
RANK_HINT = "each number of dimensions has a variant of its own: reshape the input to one of them"
TENSOR_HINT = "keep dtype and device of the input"
TYPE_HINT = "pass tensors of one class"
GRAD_HINT = "nothing, if the function is used with and without gradients: each has a variant"
STRIDE_HINT = "call `.contiguous()` on the input, or always pass it in one memory layout"
FLAG_HINT = "nothing, if it has few values, as `training` does: each has a variant"
NUMBER_HINT = "nothing: a number that has changed is an input from then on. If it comes again, pass it as a tensor"
LARGE_HINT = "an integer of more than 62 bits is no input: pass it as a tensor, or what the function needs of it"
WORDS: dict[GuardKind, str] = {
    GuardKind.IS: "the object {}",
    GuardKind.LENGTH: "of length {}",
    GuardKind.DICT_KEYS: "a dict with the keys {}",
    GuardKind.HAS_ATTR: "an object with the attribute {}",
    GuardKind.NO_ATTR: "an object without the attribute {}",
    GuardKind.ABSENT: "absent",
    GuardKind.EMPTY_DICT: "empty",
    GuardKind.IS_NONE: "None",
    GuardKind.SET_ITEMS: "a set of {}",
    GuardKind.SET_HOLDS: "a set {}",
}
"""How the expected value of a guard is worded; `{}` is its text."""
HINTS: dict[GuardKind, str] = {
    GuardKind.TYPE_IS: "pass objects of one class",
    GuardKind.EQUALS: "each value has a variant of its own: keep it equal, or call a compiled function for each",
    GuardKind.IS: "make the object once, outside of the calls",
    GuardKind.LENGTH: "keep the number of items, or stack them into one tensor",
    GuardKind.DICT_KEYS: "keep the keys",
    GuardKind.TENSOR_ALIASES: "pass tensors that share memory in the same way",
    GuardKind.SHAPE_RELATION: "remove the comparison of sizes, or keep to one side of it",
    GuardKind.GLOBAL_STATE: "call it under the same grad mode, autocast and defaults",
    GuardKind.FUNCTION_CODE: "define the function once, outside of the calls",
}
"""What to do, by kind of guard."""
