"""Guards on which paths lead to the same object, cell or memory.

    def f(x, a, b):          captured with two lists: a and b must be two lists again,
        a.append(x)          since what is written to `a` would be seen in `b`
        return len(b)

An object that was found on two paths must be found on both again; two objects of a type of which one is changed must
stay two. The same holds for cells, the memory of tensors, and tensors whose gradients the program asks for. Objects
that are only read may coincide.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import torch

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.builtins.anomaly_detection import guard_off
from kiln.capture.interpreter.builtins.tensor_data import DataEffect
from kiln.capture.interpreter.core import CaptureState, Value
from kiln.capture.interpreter.effects import ContentsEffect
from kiln.capture.interpreter.variables.array import OuterArrays
from kiln.capture.interpreter.variables.function import CellEffect
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.object import AttributeEffect, Object
from kiln.capture.interpreter.variables.sequence import AppendEffect, List
from kiln.capture.interpreter.variables.sets import Set
from kiln.capture.interpreter.variables.tensor import RegionInput, RegionInputs, Tensor
from kiln.graph.trace.fake import is_wrapped
from kiln.graph.trace.gradients import BACKWARDS
from kiln.runtime.guards.guard import AliasExpectation, GuardKind, ShapeRelation
from kiln.runtime.guards.source import AttrSource, KeysSource, LocalSource, OffsetSource, Source

SHARED = (Tensor, Object, Dict, List, Set)
"""Kinds of values that may be reached on several paths."""


def alias_guards(s: CaptureState) -> None:
    """Add all alias guards of the capture."""
    for value, sources in s.identities.aliases():
        if isinstance(value, SHARED) and value.source is not None:
            one_group(s, [value.source, *sources])
    changed_objects(s)
    moved_tensors(s)
    cells(s)
    for left, right in s.identities.distinct:
        if left.source is not None and right.source is not None and left.python_type() is right.python_type():
            several_groups(s, [[left.source], [right.source]])
    keys(s)
    memory(s)
    differentiated(s)
    if s.part(OuterArrays).written:
        several_groups(s, [[array.source] for array in s.part(OuterArrays).found if array.source is not None])


def one_group(s: CaptureState, paths: list[Source]) -> None:
    if len(paths) > 1:
        expected = AliasExpectation(tuple(paths), (0,) * len(paths), "object")
        s.guards.add(paths[-1], GuardKind.TENSOR_ALIASES, expected)


def several_groups(s: CaptureState, groups: Iterable[list[Source]], by: str = "object") -> None:
    """Guard that the paths of a group lead to one object, and those of different groups to different objects."""
    rows = [(path, number) for number, group in enumerate(groups) for path in group]
    if len(rows) > 1:
        paths, numbers = zip(*rows, strict=True)
        s.guards.add(paths[-1], GuardKind.TENSOR_ALIASES, AliasExpectation(paths, numbers, by))


def keys(s: CaptureState) -> None:
    """Tensors and objects that were keys must stay different; those that one dict from outside holds are."""
    paths: dict[int, list[Source]] = {id(value): [] for value in s.identities.keys.values()}
    for value, source in s.identities.other_paths:
        paths.get(id(value), []).append(source)
    groups = [[value.source, *paths[id(value)]] for value in s.identities.keys.values() if value.source is not None]
    holders = [{path.base for path in group if isinstance(path, KeysSource)} for group in groups]
    if len(groups) > 1 and not set.intersection(*holders):
        several_groups(s, ([group[0]] for group in groups))


def changed_objects(s: CaptureState) -> None:
    """An object that was changed must not be the same as another object of its type."""
    changed: set[type] = set()
    written: set[int] = set()
    for effect in s.effects:
        if isinstance(effect, (AppendEffect, AttributeEffect, ContentsEffect)):
            changed.add(effect.value.python_type())
            written.add(id(effect.value))
    if not changed:
        return
    found: dict[type, list[list[Source]]] = {}
    for value in s.identities.objects.values():
        kind = value.python_type()
        if kind in changed and value.source is not None and (id(value) in written or was_read(value)):
            found.setdefault(kind, []).append([value.source])
    for groups in found.values():
        several_groups(s, groups)
    instance_dicts(s, written)


def moved_tensors(s: CaptureState) -> None:
    """A tensor whose memory is set must not be the same as another input."""
    if any(isinstance(effect, DataEffect) for effect in s.effects):
        several_groups(s, [[tensor.source] for tensor in s.part(RegionInputs).tensors])


def instance_dicts(s: CaptureState, written: set[int]) -> None:
    """A dict argument must not be the `__dict__` of an object that the program reads, if either is changed."""
    known = [
        value
        for value in s.identities.objects.values()
        if isinstance(value, Dict | Object) and value.source is not None
    ]
    compared = {id(value) for value in s.identities.owners.values()}
    used = [value for value in known if id(value) in written or id(value) in compared or was_read(value)]
    dicts = [value for value in used if isinstance(value, Dict) and type(value.source) is LocalSource]
    owners: list[Value] = [value for value in used if isinstance(value, Object) and has_plain_dict(value)]
    owners += [value for value in s.identities.owners.values() if isinstance(value, Tensor)]
    if dicts and owners and any(id(value) in written for value in (*dicts, *owners)):
        paths = [value.source for value in dicts] + [
            AttrSource(owner.source, "__dict__") for owner in owners if owner.source
        ]
        several_groups(s, [[path] for path in paths if path is not None])


def has_plain_dict(value: Object) -> bool:
    """Modules are left out: their `__dict__` is not passed around."""
    return type(getattr(value.original, "__dict__", None)) is dict and not issubclass(value.cls, torch.nn.Module)


def was_read(value: Value) -> bool:
    """Whether the program read its contents."""
    if isinstance(value, Object):
        return bool(value.attrs) or value.native is not None
    return getattr(value, "_items", None) is not None or bool(getattr(value, "_found", None))


def cells(s: CaptureState) -> None:
    """Guard which cells are the same; once a cell was written, different cells must stay different."""
    groups = list(s.identities.cell_paths.values())
    if any(isinstance(effect, CellEffect) for effect in s.effects):
        several_groups(s, groups)
        return
    for paths in groups:
        one_group(s, paths)


def memory(s: CaptureState) -> None:
    """Guard which inputs share a storage, and their offsets, if an input is written or some overlap: a result that is
    a view of one may be a view of the other; so they are where the program names a place in memory. On a GPU
    `as_strided` takes the offset as given."""
    inputs = [tensor for tensor in s.part(RegionInputs).tensors if has_storage(tensor.real)]
    groups: dict[int, list[RegionInput]] = {}
    for tensor in inputs:
        groups.setdefault(tensor.real.untyped_storage()._cdata, []).append(tensor)
    viewed = {node.inputs[0] for node in s.recorder.nodes if node.op.name == "as_strided"}
    for tensor in inputs:
        record = s.recorder.table.find(tensor.real)
        storage = None if is_wrapped(tensor.fake) else tensor.fake.storage_view.storage
        placed = storage is not None and storage.is_addressed
        if placed or (tensor.real.is_cuda and record is not None and record.node in viewed):
            guard_offset(s, tensor)
        elif storage is not None and storage.alignment > tensor.real.itemsize:
            guard_offset(s, tensor, storage.alignment // tensor.real.itemsize)
    written = any(is_written(tensor) for tensor in inputs)
    if written:
        several_groups(s, ([tensor.source for tensor in group] for group in groups.values()), "storage")
    for group in groups.values():
        overlapping = len({id(tensor.fake.storage_view.storage) for tensor in group}) < len(group)
        if overlapping and not written:
            several_groups(s, [[tensor.source for tensor in group]], "storage")
        if len(group) > 1 and (overlapping or any(is_written(tensor) for tensor in group)):
            for tensor in group:
                guard_offset(s, tensor)


def refuse_memory_in_several_storages(s: CaptureState) -> None:
    """Break before the first write if inputs share memory, but not a storage: what NumPy or DLPack gave. The recorder
    knows storages; guards on them ask for memory of its own for each."""
    inputs = s.part(RegionInputs)
    if not inputs.in_place or not any(map(is_written, inputs.tensors)):
        return
    with torch._C.DisableTorchFunctionSubclass():  # what is read here is no call of the program
        storages = [tensor.real.untyped_storage() for tensor in inputs.tensors if has_storage(tensor.real)]
        if all(storage.resizable() for storage in storages):  # torch's own memory
            return
        places = sorted({(storage.data_ptr(), storage.nbytes(), storage._cdata) for storage in storages})
    if any(start + size > after for (start, size, _), (after, _, _) in pairwise(places)):
        why = "inputs of the region have memory in common that is in several storages"
        raise UnsupportedCall(function="in-place operation", why=why).before(inputs.in_place[0])


def differentiated(s: CaptureState) -> None:
    """A backward inside adds up what reaches a tensor on all paths: tensors with gradients must stay different. Nobody
    looks at its nodes."""
    if not any(call.target in BACKWARDS for call in s.recorder.calls):
        return
    guard_off(s)
    inputs = [tensor for tensor in s.part(RegionInputs).tensors if tensor.fake.requires_grad]
    apart = len({id(tensor.fake.storage_view.storage) for tensor in inputs}) == len(inputs)
    if not (apart and any(map(is_written, s.part(RegionInputs).tensors))):  # which `memory` guards
        several_groups(s, [[tensor.source] for tensor in inputs])


def guard_offset(s: CaptureState, tensor: RegionInput, multiples: int = 0) -> None:
    """Guard where in its storage an input begins: how far behind one of `multiples` of its elements."""
    offset, place = ("o", OffsetSource(tensor.source)), tensor.real.storage_offset()
    relation = f"o % {multiples} == {place % multiples}" if multiples else f"o == {place}"
    expected = ShapeRelation(relation, (offset,))
    s.guards.add(tensor.source, GuardKind.SHAPE_RELATION, expected)


def is_written(tensor: RegionInput) -> bool:
    return bool(tensor.fake.storage_view.storage.version)


def has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.numel() > 0
