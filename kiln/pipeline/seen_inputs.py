"""The sizes and numbers that a function has been called with: they decide, at each compile, which become symbols.

f(x of 4 rows)      rows are static
f(x of 6 rows)      rows are a symbol: they changed
f(x), self.kept of 4 rows, which was None       likewise: sizes of this length have changed
f([1.5, 2.0])       numbers in a list are static
f([1.5, 3.0])       both are inputs: one of their kind changed
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch

from kiln.capture.bytecode.resume import is_result
from kiln.runtime.guards.guard import Guard, GuardKind
from kiln.runtime.guards.source import LocalSource, Source, SourceTexts, argument_of
from kiln.symbolic.expr import LARGEST_NUMBER
from kiln.symbolic.policy import NO_MARKS, DimChoice, DimKind, DimPolicy, ScalarPolicy, read_marks

SYMBOL_VALUES = range(-LARGEST_NUMBER + 1, LARGEST_NUMBER)
INDEX = re.compile(r"\[\d+\]")

MOST_COMPILED = 4
"""For so many numbers that select an item of a list or dict there is a variant each."""


def is_countable(value: int | float) -> bool:
    """Whether all stages can count with it."""
    return value in SYMBOL_VALUES if isinstance(value, int) else math.isfinite(value)


def is_of_result(source: Source) -> bool:
    """Whether it is what the instruction at a graph break has left, or an item of that."""
    return is_result(argument_of(source))


class SeenInputs:
    """Sizes and numbers by source, and the policies that choose symbols from them."""

    def __init__(self, dynamic: Literal["auto", "never", "always"], *, breaks: bool = True) -> None:
        self._dims = DimPolicy(dynamic)
        self._parameter_dims = DimPolicy("never")
        self._scalars = ScalarPolicy(dynamic)
        self._sizes: dict[str, list[tuple[int, ...]]] = {}
        self._strides: dict[str, list[tuple[int, ...]]] = {}
        self._numbers: dict[str, list[int | float]] = {}
        self.symbolic: dict[str, tuple[int, ...]] = {}
        """Arguments that are known to change: a tensor in these dimensions, a number if there are none."""
        self._changed_sizes: set[int] = set()
        """What the sizes that have changed were and are."""
        self._likely: dict[str, tuple[int, ...]] = {}
        """Dimensions of tensors that a later call has first, of one of these sizes."""
        self._breaks = breaks
        self._compiled: dict[str, set[int | float]] = {}
        """The numbers of calls that were compiled."""
        self._truths: dict[str, bool] = {}
        self._changing_kinds: set[tuple[type, str]] = set()
        """Kinds of items of which one has changed: floats that are `batch[*].reward`."""
        self._static_kinds: set[tuple[type, str]] = set()
        """Those of which an item was static in this attempt."""

    def add_symbolic(self, inputs: Mapping[str, tuple[int, ...]]) -> None:
        """Arguments that are known to change: a tensor in these dimensions, a number if there are none."""
        self.symbolic.update(inputs)

    def note_changing(self, inputs: Mapping[str, tuple[int, ...]]) -> bool:
        """Take what the program changes as inputs, as `add_symbolic` does; whether any was not one before, or
        items became inputs after others of their kind had not."""
        known = {text: self.symbolic.get(text) for text in inputs}
        new = {text: tuple(sorted({*dims, *(known[text] or ())})) for text, dims in inputs.items()}
        new = {text: dims for text, dims in new.items() if dims != known[text]}
        late, self._static_kinds = self._static_kinds & self._changing_kinds, set()
        if self._scalars.dynamic == "never":
            return False
        self.symbolic.update(new)
        return bool(new or late)

    def clear(self) -> None:
        """Forget all calls, but not what is known of the arguments."""
        self._sizes, self._strides, self._numbers, self._compiled, self._truths = {}, {}, {}, {}, {}
        self._changing_kinds.clear()
        self._changed_sizes.clear()
        self._likely.clear()

    def add_arguments(self, arguments: Mapping[str, object]) -> None:
        """Remember the sizes and numbers of a call that was not compiled."""
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor):
                self.dims(value, LocalSource(name))
            elif isinstance(value, int | float) and not isinstance(value, bool):
                self._numbers.setdefault(LocalSource(name).text(), []).append(value)

    def dims(self, tensor: torch.Tensor, source: Source) -> tuple[DimChoice, ...] | None:
        """Static or a symbol, per dimension; sizes and strides are remembered. Parameters are static (None: all)."""
        if tensor.is_nested or tensor.layout is not torch.strided:  # not captured; it may have no shape or strides
            return None
        sizes, marks = tuple(tensor.shape), read_marks(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            return None if marks is NO_MARKS else self._parameter_dims.choose(sizes, [], marks)
        text = source.text()
        seen = self._sizes.setdefault(text, [])
        if not seen and self._changed_sizes:
            self._likely[text] = tuple([dim for dim, size in enumerate(sizes) if size in self._changed_sizes])
        if changing := (*self.symbolic.get(text, ()), *self._likely.get(text, ())):
            marks = replace(marks, maybe_dynamic=marks.maybe_dynamic.union(changing))
        choices = self._dims.choose(sizes, seen, marks)
        if self._dims.dynamic == "auto":
            self._note_changed(sizes, seen, choices)
        strides, seen_strides = tensor.stride(), self._strides.setdefault(text, [])
        free = self._dims.free_strides(strides, seen_strides) - marks.static
        for now, before in ((sizes, seen), (strides, seen_strides)):
            if now not in before:
                before.append(now)
        return tuple(
            [replace(choice, is_stride_free=True) if dim in free else choice for dim, choice in enumerate(choices)]
        )

    def _note_changed(
        self, sizes: tuple[int, ...], seen: Iterable[tuple[int, ...]], choices: Iterable[DimChoice]
    ) -> None:
        """Sizes of 0 and 1 are left out, which many tensors have."""
        alike = [other for other in (*seen, sizes) if len(other) == len(sizes)]
        for dim, choice in enumerate(choices):
            values = {other[dim] for other in alike}
            if choice.kind is DimKind.SYMBOL and len(values) > 1:
                self._changed_sizes |= values - {0, 1}

    def data(self) -> dict[str, Any]:
        """All that was seen, for the file of a variant."""
        sizes, strides = (
            {name: [list(numbers) for numbers in seen] for name, seen in table.items()}
            for table in (self._sizes, self._strides)
        )
        return {"sizes": sizes, "strides": strides, "numbers": self._numbers}

    def merge(self, data: Mapping[str, Any]) -> None:
        """Add what another process has seen (its `data()`)."""
        for table, found in ((self._sizes, data["sizes"]), (self._strides, data["strides"])):
            for name, rows in found.items():
                known = table.setdefault(name, [])
                known.extend(row for row in map(tuple, rows) if row not in known)
        for name, values in data["numbers"].items():
            known_numbers = self._numbers.setdefault(name, [])
            known_numbers.extend(value for value in values if value not in known_numbers)

    def is_symbol(self, value: int | float, source: Source) -> bool:
        """Whether this number becomes an input; a truth value only if it is an item of a list or tuple."""
        text = source.text()
        pattern = INDEX.sub("[*]", text)
        if pattern == text:
            return type(value) is not bool and self._is_changing(value, source)
        kind = type(value), pattern
        if type(value) is bool:
            changing = self._scalars.dynamic != "never" and self._truths.get(text, value) is not value
        else:
            changing = self._is_changing(value, source)
        if changing:
            self._changing_kinds.add(kind)
        elif kind not in self._changing_kinds:
            self._static_kinds.add(kind)
        return kind in self._changing_kinds and (type(value) is bool or is_countable(value))

    def _is_changing(self, value: int | float, source: Source) -> bool:
        if type(value) in (int, float) and is_of_result(source) and self._scalars.dynamic != "never":
            return is_countable(value)  # data decide it
        if not self._numbers and not self.symbolic and self._scalars.dynamic != "always":
            return False
        if not is_countable(value):
            return False
        text = source.text()
        self._compiled.setdefault(text, set()).add(value)
        if self.symbolic.get(text) == ():
            return True
        argument = type(source) is LocalSource
        if not argument and not self._numbers:
            return False
        seen = self._numbers.get(text, [])
        return self._scalars.choose(value, seen, is_argument=argument).kind is DimKind.SYMBOL

    def varies(self, source: Source, *, is_last: bool) -> bool:
        """Whether it was another number in so many compiles that what it selects is better taken in Python.

        `is_last`: a function gets its last variant, which is to serve all numbers.
        """
        text = source.text()
        found = {*self._compiled.get(text, ()), *self._numbers.get(text, ())}
        return self._breaks and len(found) > (1 if is_last else MOST_COMPILED)

    def add_guarded(self, guards: Iterable[Guard]) -> None:
        """Remember the numbers to which the guards of a new variant fix their sources."""
        texts = SourceTexts()
        for guard in guards:
            value = guard.expected
            if guard.kind is not GuardKind.EQUALS:
                continue
            if isinstance(value, bool):
                self._truths[texts.of(guard.source)] = value
            elif isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
                seen = self._numbers.setdefault(texts.of(guard.source), [])
                if value not in seen:
                    seen.append(value)
