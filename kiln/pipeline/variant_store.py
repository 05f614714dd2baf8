"""Compiled variants on disk: what one process compiled, the next one loads.

    key = function's code, kinds of the arguments, torch's modes, options, machine, versions      (`KeyBuilder`)
    variant/<key of slot 0>, variant/<key of slot 1>, ...        the first whose guards hold is taken

The key only finds candidates; guards and module digests decide whether a candidate fits the call. A new variant takes
the first free slot of its key. Two processes that write the same slot write it atomically: one variant is lost, none is
torn. The event `variant_missing` says why nothing fits: how the key differs from the one stored last, or what each
candidate requires.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import final
from weakref import WeakKeyDictionary

import torch
from torch import nn

from kiln.capture.bytecode.resume import origin_of
from kiln.capture.guards.explanation import explain_failure
from kiln.native import _frames
from kiln.native._frames import Entry
from kiln.pipeline.dispatchers import Arguments, original_of
from kiln.runtime.bytecode_file import PartWriter
from kiln.runtime.cache.key_builder import KeyBuilder, explain_miss, remember
from kiln.runtime.cache.store import DiskStore, content_key
from kiln.runtime.guards.reference import CodeDigests, code_key
from kiln.runtime.guards.tree import TreeRows
from kiln.runtime.variant import UNREADABLE, Makers, Variant, load_variant, write_variant
from kiln.support.errors import InternalFault, KilnError
from kiln.support.events import EventSink

SAVED = "saved"
SLOTS = 16
"""The most variants kept per key."""


Standing = tuple[int, bool]
"""See `dispatchers.standing`."""


@final
class VariantStore:
    """The variants of one `kiln.compile` call on disk. `start_key(label)`: the key that all of them share."""

    def __init__(self, store: DiskStore, events: EventSink, start_key: Callable[[str], KeyBuilder]) -> None:
        self.store = store
        self.events = events
        self.start_key = start_key
        self.digests: CodeDigests = WeakKeyDictionary()
        self.outcome = ""
        """SAVED, or why the last variant was not."""

    def load(self, function: FunctionType, standing: Standing, arguments: Arguments, makers: Makers) -> Entry | None:
        """The first stored variant that fits the call."""
        key = self.key(function, standing, arguments)
        base = key.digest()
        reasons: list[str] = []
        for slot in range(SLOTS):
            data = self.store.get("variant", slot_key(base, slot))
            if data is None:
                break
            try:
                entry = load_variant(data, function, list(arguments.values()), makers)
            except UNREADABLE as problem:
                self.events.emit("variant_unreadable", reason=f"{type(problem).__name__}: {problem}")
                continue
            if isinstance(entry, Entry):
                return entry
            why = entry if isinstance(entry, str) else explain_failure(entry.guard, entry.actual).text()
            reasons.append(f"variant {slot}: {why}")
        self.events.emit("variant_missing", reason="; ".join(reasons) or explain_miss(self.store, key))
        return None

    def save(
        self,
        function: FunctionType,
        standing: Standing,
        arguments: Arguments,
        variant: Variant,
        tree: TreeRows,
        part: PartWriter,
    ) -> None:
        """Write the variant into a free slot; one that cannot be written is reported."""
        try:
            data = write_variant(variant, tree, function, part)
        except Exception as fault:  # the compiled variant runs all the same
            problem = fault if isinstance(fault, KilnError) else InternalFault(stage="save", problem=repr(fault))
            self.events.emit("not_saved", code=problem.code, reason=problem.reason)
            self.outcome = f"{problem.code} {problem.reason}"
            return
        key = self.key(function, standing, arguments)
        base = key.digest()
        free = (slot for slot in range(SLOTS) if not self.store.has("variant", slot_key(base, slot)))
        self.store.put("variant", slot_key(base, next(free, SLOTS - 1)), data)
        remember(self.store, key)
        self.events.emit("saved", bytes=len(data))
        self.outcome = SAVED

    def key(self, function: FunctionType, standing: Standing, arguments: Arguments) -> KeyBuilder:
        """What candidates share with the call."""
        name = f"{function.__globals__.get('__name__')}.{function.__qualname__}"
        key = self.start_key(name).add("function", name).add("code", self.code_text(function))
        exits, assumes = standing
        key.add("side exits before it", exits).add("assumes what is likely", assumes)
        key.add("torch's modes", str(_frames.global_state()))
        for number, (argument, value) in enumerate(arguments.items()):
            key.add(f"argument {number} {argument}", sketch(value))
        return key

    def code_text(self, function: FunctionType) -> str:
        """The code of the program, and for a resume function where it is entered."""
        origin = origin_of(function)
        if origin is None:
            return code_key(function.__code__, self.digests)
        inner = origin.inner
        text = f"{code_key(origin.code, self.digests)} {origin.entry}"
        if inner is None:
            return text
        called = self.code_text(original_of(inner.function.function))
        return f"{text} calls {called} with {inner.arguments} at {inner.at} {inner.keep} {inner.instead}"


def slot_key(base: str, slot: int) -> str:
    return content_key(base, str(slot))


def sketch(value: object) -> str:
    """The kind of an argument, coarsely; variants for other kinds are no candidates."""
    kind = f"{type(value).__module__}:{type(value).__qualname__}"
    if isinstance(value, torch.Tensor):
        return f"{kind} {value.dtype} {value.device} {value.dim()} {value.requires_grad}"
    if isinstance(value, nn.Module):
        return content_key(*module_sketch(value, ""))
    return kind


def module_sketch(module: nn.Module, name: str) -> list[str]:
    """Classes, training modes and parameters of a tree of modules, read without running its code."""
    state = vars(module)
    lines = [f"{name}: {type(module).__module__}:{type(module).__qualname__} {state.get('training')}"]
    for key, parameter in state.get("_parameters", {}).items():
        if isinstance(parameter, torch.Tensor):
            known = parameter.layout is torch.strided and not nn.parameter.is_lazy(parameter)
            shape = tuple(parameter.shape) if known else ()
            lines.append(f"{key} {parameter.dtype} {parameter.requires_grad} {shape}")
    for key, child in state.get("_modules", {}).items():
        if isinstance(child, nn.Module):
            lines.extend(module_sketch(child, f"{name}.{key}"))
    return lines
