"""Bringing two groups into one space: which symbol of one group is which symbol of the other.

    writes y at 768*g0 + g1        (g0: 128, g1: 768)          names  g4 = g0, g5 = g1
    reads  y at 98304*g3 + 768*g4 + g5                         g3 stays

Both forms are read as digits (stride, size) of a mixed-radix number. Digits of equal stride and size are one symbol; a
digit whose size is a multiple of the other's is split first. A dependency is local when, for each unit, the reader's
inner digits are among the writer's: a unit then reads only what it has written itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import final

from kiln.loops.body.affine import Affine, divides
from kiln.loops.fusion.group import Group, GroupSymbols, Member, MemberAccess
from kiln.support.records import dataclass
from kiln.symbolic import Int, Symbol, is_static

Names = dict[Symbol, Symbol]
"""Symbols of the second group, and the symbols of the first that they equal."""


@final
@dataclass(frozen=True, slots=True)
class CommonSpace:
    """The second group under the symbols of the first: `names`, and the `units` of both together."""

    names: Names
    units: dict[Symbol, None]


@final
@dataclass(frozen=True, slots=True)
class Dependency:
    """`access` of group `reading` reads what member `writer` of group `writing` writes."""

    writing: Group
    writer: Member
    reading: Group
    access: MemberAccess


def dependencies(first: Group, second: Group) -> Iterator[Dependency]:
    """The reads of one group of what the other writes, in both directions."""
    for writing, reading in ((first, second), (second, first)):
        writers = writing.writers()
        for member in reading.members:
            for access in member.reads:
                if access.buffer in writers:
                    yield Dependency(writing, writers[access.buffer], reading, access)


def align(
    first: Group, second: Group, links: Sequence[Dependency], symbols: GroupSymbols, *, opened: bool = False
) -> CommonSpace:
    """The best common space for the dependencies `links`, which are affine; symbols are split so that more are equal.

    `opened`: every symbol of the second group may be a unit, also those that it reduces.
    """
    names: Names | None = None
    while names is None:
        names = _equal_symbols(first, second, links, symbols)
    pair_by_size(first, second, names)
    theirs = {names[symbol] for symbol in (second.sizes if opened else second.units) if symbol in names}
    return CommonSpace(names, {unit: None for unit in first.units if unit in theirs})


def _equal_symbols(first: Group, second: Group, links: Sequence[Dependency], symbols: GroupSymbols) -> Names | None:
    """Equal symbols by all buffers that both use; None after a split, which changes earlier pairs."""
    names: Names = {}
    for form, other in (*_dependent_forms(first, links), *_shared_forms(first, second)):
        found = _match(first, form, second, other, symbols)
        if found is None:
            return None
        taken = set(names.values())
        names |= {mine: theirs for mine, theirs in found.items() if mine not in names and theirs not in taken}
    return names


def _dependent_forms(first: Group, links: Sequence[Dependency]) -> Iterator[tuple[Affine, Affine]]:
    """Forms of the first and the second group, those with most digits first."""
    ordered = sorted(links, key=lambda link: -len(link.access.form.strides) if link.access.form else 0)
    for link in ordered:
        written, read = link.writer.write.form, link.access.form
        if written is not None and read is not None:
            yield (written, read) if link.writing is first else (read, written)


def _shared_forms(first: Group, second: Group) -> Iterator[tuple[Affine, Affine]]:
    """Forms of buffers that both read."""
    forms = {access.buffer: access.form for member in first.members for access in member.reads}
    for member in second.members:
        for access in member.reads:
            form = forms.get(access.buffer)
            if form is not None and access.form is not None:
                yield form, access.form


def pair_by_size(first: Group, second: Group, names: Names) -> None:
    """Make inner symbols that are still without a partner one loop where their sizes are equal."""
    taken = set(names.values())
    free = [symbol for symbol in first.sizes if symbol not in taken and symbol not in first.units]
    for mine, size in second.sizes.items():
        if mine in names or mine in second.units:
            continue
        for theirs in free:
            if first.sizes[theirs] == size:
                names[mine] = theirs
                free.remove(theirs)
                break


def _match(group: Group, form: Affine, other: Group, other_form: Affine, symbols: GroupSymbols) -> Names | None:
    """Equal symbols of two forms of one buffer; None after splitting one of them so that more fit."""
    names: Names = {}
    by_stride = _symbols_by_stride(form)
    for mine, stride in other_form.strides.items():
        theirs = by_stride.get(stride)
        if theirs is None or 1 in (group.sizes[theirs], other.sizes[mine]):
            continue
        small, large = group.sizes[theirs], other.sizes[mine]
        if small == large:
            names[mine] = theirs
            del by_stride[stride]
        elif divides(large, small) and group.can_split(theirs) and _goes_on(other_form, stride, large, small):
            _split(group, theirs, large, symbols)
            return None
        elif divides(small, large) and other.can_split(mine) and _goes_on(form, stride, small, large):
            _split(other, mine, small, symbols)
            return None
    return names


def _goes_on(form: Affine, stride: Int, size: Int, whole: Int) -> bool:
    """Would the rest of a digit of size `whole`, split behind `size`, fit the strides of `form`?

    x[4095*i0 + i1], i1 < 8: no, behind eight elements of a row it goes on in steps of 4095.
    """
    end, last = stride * size, stride * whole
    if not (is_static(end) and is_static(last)):
        return True
    within = [other for other in form.strides.values() if is_static(other) and end <= other < last]
    return not within or end in within


def _symbols_by_stride(form: Affine) -> dict[Int, Symbol]:
    """Empty where two symbols have one stride."""
    found = {stride: symbol for symbol, stride in form.strides.items()}
    return found if len(found) == len(form.strides) else {}


def _split(group: Group, old: Symbol, low_size: Int, symbols: GroupSymbols) -> None:
    """Split off the innermost `low_size` points of `old`."""
    high, low = symbols.fresh(), symbols.fresh()
    group.split(old, low, low_size, high, group.sizes[old] // low_size)


def is_local(link: Dependency, first: Group, space: CommonSpace) -> bool:
    """Does each unit of `space` read only what it has written?"""
    written, read = link.writer.write.form, link.access.form
    assert written is not None and read is not None
    if written.offset != read.offset:
        return False
    written_outer, written_inner = _unit_strides(link.writing, written, first, space)
    read_outer, read_inner = _unit_strides(link.reading, read, first, space)
    distinct = len({stride for stride, _ in written_inner}) == len(written_inner)
    return distinct and written_outer == read_outer and set(read_inner) <= set(written_inner)


def _unit_strides(
    group: Group, form: Affine, first: Group, space: CommonSpace
) -> tuple[dict[Symbol, Int], list[tuple[Int, Int]]]:
    """Strides of the units of `space`; (stride, size) of the other symbols."""
    names: Mapping[Symbol, Symbol] = {} if group is first else space.names
    outer: dict[Symbol, Int] = {}
    inner: list[tuple[Int, Int]] = []
    for symbol, stride in form.strides.items():
        name = names.get(symbol, symbol)
        if name in space.units:
            outer[name] = stride
        elif (size := group.sizes[symbol]) != 1:
            inner.append((stride, size))
    return outer, inner
