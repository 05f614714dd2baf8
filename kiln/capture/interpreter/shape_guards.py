"""The guards that are added at the end of the recording: tensors, shared objects, sizes, torch's state.

x: f32[s0, 128]     =>     x: tensor sizes [*, 128], strides [128, 1]
                           s0 <= 512  with s0 = x.size(0)        (from user code at model.py:41)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch

from kiln.capture.interpreter.alias_guards import alias_guards
from kiln.capture.interpreter.class_guards import guard_lookups
from kiln.capture.interpreter.core import CaptureState
from kiln.capture.interpreter.variables.tensor import RegionInput, RegionInputs
from kiln.graph.trace.inputs import InputRecord
from kiln.runtime.guards.guard import Guard, GuardKind, ShapeRelation, tensor_expectation
from kiln.runtime.guards.source import FormulaSource, LocalSource, SizeSource, Source, StrideSource
from kiln.support.location import Location
from kiln.symbolic import Symbol
from kiln.symbolic.policy import read_marks, require_open
from kiln.tensor.spec import ScalarSpec, TensorSpec


def finish_guards(s: CaptureState) -> list[Guard]:
    """All guards of the capture. No `__torch_function__` of the program is asked for what a tensor is like."""
    with torch._C.DisableTorchFunctionSubclass():
        return all_guards(s)


def all_guards(s: CaptureState) -> list[Guard]:
    s.guards.add(LocalSource(""), GuardKind.GLOBAL_STATE, s.global_state)
    specs = {id(record.fake): record.spec for record in s.recorder.inputs if isinstance(record.spec, TensorSpec)}
    names: dict[str, Source] = {}
    tensors = s.part(RegionInputs).tensors
    for tensor in tensors:
        tensor_guard(s, tensor, specs[id(tensor.fake)], names)
    for tensor in tensors:
        stride_guards(s, tensor, specs[id(tensor.fake)], names)
    offsets = number_guards(s, names)
    computed = computed_symbols(s.recorder.inputs)
    for guard in s.recorder.env.guards:
        if not computed.isdisjoint(guard.relation.free_symbols()):
            continue  # transformed code asks
        relation(s, in_terms_of_sources(str(guard.relation), offsets), names, guard.location)
    alias_guards(s)
    guard_lookups(s)
    return s.guards.finish()


def computed_symbols(records: Iterable[InputRecord]) -> set[Symbol]:
    """The integers that are computed in front of the region."""
    specs = [record.spec for record in records if type(record.source) is FormulaSource]
    return {spec.value for spec in specs if isinstance(spec, ScalarSpec) and isinstance(spec.value, Symbol)}


def in_terms_of_sources(text: str, offsets: Mapping[str, int]) -> str:
    """A relation in which the names of these symbols stand for what the caller passes, without the offset."""
    return re.sub(
        r"\bs\d+\b", lambda match: f"({match[0]} + {offsets[match[0]]})" if match[0] in offsets else match[0], text
    )


def number_guards(s: CaptureState, names: dict[str, Source]) -> dict[str, int]:
    """Integer inputs are within their offset and 64 bits; a float whose value was read is guarded to be equal.

    Returns the offsets by the names of the symbols that have one.
    """
    offsets = dict[str, int]()
    for record in s.recorder.inputs:
        if record.is_drawn:
            continue
        if record.given is not None:
            if record.given.is_read:
                s.guards.add(record.source, GuardKind.EQUALS, record.given.number, record.given.location)
        elif record.real is None and type(record.source) is not FormulaSource:
            assert isinstance(record.spec, ScalarSpec) and isinstance(record.spec.value, Symbol)
            name = record.spec.value.name
            names[name] = record.source
            if record.offset:
                offsets[name] = record.offset
            bounds = f"{-record.offset} <= {name} <= {(1 << 63) - 1 - record.offset}"
            relation(s, bounds, names, None)
    return offsets


def tensor_guard(s: CaptureState, tensor: RegionInput, spec: TensorSpec, names: dict[str, Source]) -> None:
    """Guard the metadata, with any value where a size is a symbol; symbols get the source of their first size.

    Raises FixedMarkedDim if the program fixes a size that the user marked as dynamic.
    """
    sizes = tuple([size if isinstance(size, int) else None for size in spec.sizes])
    strides = tuple([stride if isinstance(stride, int) else None for stride in spec.strides])
    real = tensor.real
    leaf = type(real) is torch.Tensor and (real.requires_grad or id(tensor.fake) in s.part(RegionInputs).asked_is_leaf)
    s.guards.add(tensor.source, GuardKind.TENSOR, tensor_expectation(real, sizes, strides, is_leaf=leaf))
    for dim, stride in enumerate(spec.strides):
        if isinstance(stride, Symbol) and stride not in spec.sizes:
            names.setdefault(stride.name, StrideSource(tensor.source, dim))
    if None not in sizes:
        return
    symbols = {dim: size for dim, size in enumerate(spec.sizes) if isinstance(size, Symbol)}
    for dim, size in symbols.items():
        names.setdefault(size.name, SizeSource(tensor.source, dim))
    for dim in read_marks(real).dynamic & symbols.keys():
        require_open(s.recorder.env, symbols[dim], dim=dim, source=tensor.source.text())


def stride_guards(s: CaptureState, tensor: RegionInput, spec: TensorSpec, names: dict[str, Source]) -> None:
    """Guard that strides which are expressions of symbols have their values, unless they are the symbols' own."""
    for dim, stride in enumerate(spec.strides):
        source = StrideSource(tensor.source, dim)
        if isinstance(stride, int) or names.get(str(stride)) == source:
            continue
        own = f"stride_{dim}"
        relation(s, f"{own} == {stride}", {**names, own: source}, None)


def relation(s: CaptureState, text: str, names: dict[str, Source], location: Location | None) -> None:
    used = tuple((name, source) for name, source in names.items() if name in text)
    source = used[0][1] if used else LocalSource("")
    s.guards.add(source, GuardKind.SHAPE_RELATION, ShapeRelation(text, used), location)
