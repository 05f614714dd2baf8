"""Why a variant does not fit a call, in the user's terms.

failure = explain_failure(Guard(ItemSource(DictAttrSource(LocalSource("self"), "_modules"), "layer"), EQUALS, 3), "4")
failure.text()      "self.layer is 4, and was 3 (asked by model.py:41, in forward)"
failure.hint        what the user may do
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
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
from kiln.runtime.guards.source import ItemSource, Source
from kiln.runtime.guards.state import current_state
from kiln.support.location import Location
from kiln.support.records import dataclass

OWN_TABLES = frozenset(("_modules", "_parameters", "_buffers", "__dict__"))
"""Dicts whose items are attributes of the object."""


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """A guard that does not hold: what it is about, what it expects and finds, the line that asked, and advice."""

    subject: str
    expected: str
    actual: str
    location: Location | None
    hint: str

    def text(self) -> str:
        asked = f" (asked by {self.location.text()})" if self.location is not None else ""
        return f"{self.subject} is {self.actual}, and was {self.expected}{asked}"


def explain_failure(guard: Guard, actual: str, names: Sequence[str] = ()) -> Failure:
    """`actual` describes the value that the guard saw, as `GuardTree.explain` does; `names` those of `args[0]`, ..."""
    found = failure_of(guard, actual)
    subject = re.sub(r"\bargs\[(\d+)\]", lambda item: names[int(item[1])] if int(item[1]) < len(names) else item[0],
                     found.subject)  # fmt: skip
    return replace(found, subject=subject)


def failure_of(guard: Guard, actual: str) -> Failure:
    if isinstance(guard.expected, TensorExpectation):
        return tensor_failure(guard, guard.expected, actual)
    if isinstance(guard.expected, ShapeRelation):
        return Failure(relation_text(guard.expected), "true", "false", guard.location, HINTS[guard.kind])
    if isinstance(guard.expected, AliasExpectation):
        names = ", ".join(user_text(source) for source in guard.expected.sources)
        shared = "object" if guard.expected.by == "object" else "memory"
        return Failure(
            f"the {shared} of {names}", "shared alike", "shared otherwise", guard.location, HINTS[guard.kind]
        )
    subject, expected = user_text(guard.source), expected_text(guard.expected)
    if isinstance(guard.expected, GlobalState):
        return state_failure(guard, guard.expected)
    if guard.kind is GuardKind.TYPE_IS:
        subject = f"type({subject})"
        expected = f"class {expected.replace(':', '.').removeprefix('builtins.')}"
        actual = f"that of {actual}"
    else:
        expected = WORDS.get(guard.kind, "{}").format(expected)
    return Failure(subject, expected, actual, guard.location, HINTS.get(guard.kind, ""))


def state_failure(guard: Guard, expected: GlobalState) -> Failure:
    """The settings of torch that differ."""
    now = current_state()
    changed = [field.name for field in fields(expected) if getattr(expected, field.name) != getattr(now, field.name)]
    before, after = (", ".join(f"{name}={getattr(state, name)}" for name in changed) for state in (expected, now))
    return Failure("torch's state", before, after, guard.location, HINTS[guard.kind])


BEHIND_BASE: Mapping[type[Source], str] = {
    sources.AttrSource: "{0}.{1.name}",
    sources.DictAttrSource: "{0}.{1.name}",
    sources.ClassFieldSource: "{0}.{1.name}",
    sources.ClosureSource: "a variable of the function {0}",
    sources.TypeSource: "type({0})",
    sources.MethodFuncSource: "{0}",
    sources.ArraySource: "{0}",
    sources.MethodSelfSource: "{0}.__self__",
    sources.GradSource: "{0}.grad",
    sources.SizeSource: "{0}.size({1.dim})",
    sources.StrideSource: "{0}.stride({1.dim})",
    sources.KeysSource: "item {1.index} of {0}",
    sources.ValuesSource: "the value of item {1.index} of {0}",
}
"""A path in the words of a program: with that of its base, and its fields."""


def user_text(source: Source) -> str:
    """The path as the program would write it."""
    match source:
        case sources.LocalSource() if PARAMETER.match(source.name) or source.name.startswith("_kiln_"):
            return "a value on the stack"
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


DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
          "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
          "ComplexFloat": "complex64", "ComplexDouble": "complex128"}  # fmt: skip
"""c10's names of dtypes."""
TENSOR = re.compile(r"(?P<type>\S+) of (?P<dtype>\w+) on (?P<device>\S+?)(, sizes \[(?P<sizes>.*?)\], strides \[.*?\])?"
                    r"(?P<grad>, requires grad)?")  # fmt: skip


def tensor_failure(guard: Guard, expected: TensorExpectation, actual: str) -> Failure:
    """Only what differs."""
    subject, hint = user_text(guard.source), HINTS[guard.kind]
    found = TENSOR.fullmatch(actual)
    if found is None:
        return Failure(subject, expected.text(), actual, guard.location, hint)
    for part, before, after in differences(expected, found):
        if before != after:
            return Failure(
                f"{part} of {subject}", before, after, guard.location, SIZE_HINT if part == "shape" else hint
            )
    return Failure(
        f"the layout of {subject}", "the same", "another (strides, subclass, leaf or view)", guard.location, hint
    )


def differences(expected: TensorExpectation, found: re.Match[str]) -> list[tuple[str, str, str]]:
    """(part, expected, actual) of a tensor guard."""
    dtype = DTYPES.get(found["dtype"], found["dtype"])
    sizes = [size for size in (found["sizes"] or "").split(", ") if size]
    fits = len(sizes) == len(expected.sizes) and all(
        before is None or str(before) == after for before, after in zip(expected.sizes, sizes, strict=True)
    )
    shape = f"[{', '.join('*' if size is None else str(size) for size in expected.sizes)}]"
    device = torch.device(found["device"])
    return [
        ("dtype", str(expected.dtype).removeprefix("torch."), dtype),
        ("device", str(expected.device), str(device)),
        ("shape", shape, shape if fits else f"[{', '.join(sizes)}]"),
        ("requires_grad", str(expected.requires_grad), str(found["grad"] is not None)),
    ]


SIZE_HINT = "kiln.compile(dynamic=True), or torch._dynamo.mark_dynamic on the input, compiles once for all sizes"
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
    GuardKind.EQUALS: "numbers that change become inputs; keep other values equal, or pass what changes as a tensor",
    GuardKind.IS: "make the object once, outside of the calls",
    GuardKind.LENGTH: "keep the number of items, or stack them into one tensor",
    GuardKind.DICT_KEYS: "keep the keys",
    GuardKind.TENSOR: "keep dtype, device, strides and requires_grad of the input",
    GuardKind.TENSOR_ALIASES: "pass tensors that share memory in the same way",
    GuardKind.SHAPE_RELATION: "remove the comparison of sizes, or keep to one side of it",
    GuardKind.GLOBAL_STATE: "call it under the same grad mode, autocast and defaults",
    GuardKind.FUNCTION_CODE: "define the function once, outside of the calls",
}
"""What to do, by kind of guard."""
