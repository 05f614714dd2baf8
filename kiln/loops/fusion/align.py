"""Bringing two groups onto one space: which symbol of one is which symbol of the other.

    writes y at 768*g0 + g1        (g0: 128, g1: 768)          pairs  g4 = g0, g5 = g1
    reads  y at 98304*g3 + 768*g4 + g5                         g3 is left

Both forms are read as digits (stride, size) of a mixed-radix number. Digits of equal stride and size are one symbol;
a digit that is a multiple of the other's is split first. A dependency is local when, for each unit, the reader's
inner digits are digits of the writer's: then what a unit reads it has written itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

from kiln.loops.body.affine import Affine, divides
from kiln.loops.fusion.group import Group, GroupSymbols, Member, MemberAccess
from kiln.symbolic import Int, Symbol

Pairs = dict[Symbol, Symbol]
"""GroupSymbols of the second group, and those of the first that they stand for."""


@final
@dataclass(frozen=True, slots=True)
class CommonSpace:
    """The second group under the symbols of the first: `names`, and the `units` of both together."""

    names: Pairs
    units: dict[Symbol, None]


def dependencies(first: Group, second: Group) -> Iterator[tuple[Group, Member, Group, MemberAccess]]:
    """(group and member that write, group that reads, the read) for each buffer from the one to the other."""
    for writing, reading in ((first, second), (second, first)):
        writers = writing.writers()
        for member in reading.members:
            for access in member.reads:
                if access.buffer in writers:
                    yield writing, writers[access.buffer], reading, access


def align(first: Group, second: Group, symbols: GroupSymbols, *, opened: bool = False) -> CommonSpace | None:
    """A common space in which every dependency between the two is local; None where there is none.

    `opened`: every symbol of the second group may be a unit, also those that it reduces.
    """
    links = list(dependencies(first, second))
    if any(access.form is None or access.conditional or member.write.form is None for _, member, _, access in links):
        return None
    names: Pairs | None = None
    while names is None:
        names = _pairs(first, second, links, symbols)
    pair_by_size(first, second, names)
    theirs = {names[one] for one in (second.sizes if opened else second.units) if one in names}
    units = {one: None for one in first.units if one in theirs}
    for writing, writer, reading, access in links:
        to_first = names if reading is second else {}
        of_writer = names if writing is second else {}
        if not _is_local(_Side(writing, writer.write, of_writer), _Side(reading, access, to_first), units):
            return None
    return CommonSpace(names, units)


def _pairs(
    first: Group, second: Group, links: list[tuple[Group, Member, Group, MemberAccess]], symbols: GroupSymbols
) -> Pairs | None:
    """Pairs from all buffers between the two; None after a split, which changes earlier pairs."""
    names: Pairs = {}
    for one, other in (*_dependent_forms(first, links), *_shared_forms(first, second)):
        found = match(first, one, second, other, symbols)
        if found is None:
            return None
        names |= _new_pairs(names, found)
    return names


def _dependent_forms(
    first: Group, links: list[tuple[Group, Member, Group, MemberAccess]]
) -> Iterator[tuple[Affine, Affine]]:
    """Forms of the first and the second group, those with most digits first."""
    ordered = sorted(links, key=lambda link: -len(link[3].form.strides) if link[3].form else 0)
    for writing, writer, _, access in ordered:
        if writer.write.form is not None and access.form is not None:
            forms = (writer.write.form, access.form)
            yield forms if writing is first else forms[::-1]  # type: ignore[misc]


def _shared_forms(first: Group, second: Group) -> Iterator[tuple[Affine, Affine]]:
    """Forms of buffers that both read."""
    known = {access.buffer: access.form for member in first.members for access in member.reads}
    for member in second.members:
        for access in member.reads:
            form = known.get(access.buffer)
            if form is not None and access.form is not None:
                yield form, access.form


def _new_pairs(names: Pairs, found: Pairs) -> Pairs:
    taken = set(names.values())
    return {mine: theirs for mine, theirs in found.items() if mine not in names and theirs not in taken}


def pair_by_size(first: Group, second: Group, names: Pairs) -> None:
    """Inner symbols that nothing pairs are one loop where their sizes are equal."""
    taken = set(names.values())
    free = [one for one in first.sizes if one not in taken and one not in first.units]
    for mine, size in second.sizes.items():
        if mine in names or mine in second.units:
            continue
        for theirs in free:
            if first.sizes[theirs] == size:
                names[mine] = theirs
                free.remove(theirs)
                break


def match(one: Group, first: Affine, other: Group, second: Affine, symbols: GroupSymbols) -> Pairs | None:
    """Pairs of symbols in two forms of one buffer; None after splitting one of them so that more fit."""
    pairs: Pairs = {}
    digits = _digits(first)
    for mine, stride in second.strides.items():
        theirs = digits.get(stride)
        if theirs is None or 1 in (one.sizes[theirs], other.sizes[mine]):
            continue
        small, large = one.sizes[theirs], other.sizes[mine]
        if small == large:
            pairs[mine] = theirs
            del digits[stride]
        elif divides(large, small) and one.can_split(theirs):
            _split(one, theirs, large, symbols)
            return None
        elif divides(small, large) and other.can_split(mine):
            _split(other, mine, small, symbols)
            return None
    return pairs


def _digits(form: Affine) -> dict[Int, Symbol]:
    """GroupSymbols by stride; none where two have one stride."""
    found = {stride: one for one, stride in form.strides.items()}
    return found if len(found) == len(form.strides) else {}


def _split(group: Group, old: Symbol, low_size: Int, symbols: GroupSymbols) -> None:
    """Split off the innermost `low_size` points of `old`."""
    high, low = symbols.fresh(), symbols.fresh()
    group.split(old, low, low_size, high, group.sizes[old] // low_size)


@final
@dataclass(frozen=True, slots=True)
class _Side:
    """An access of a group, under the names of the merged group."""

    group: Group
    access: MemberAccess
    names: Mapping[Symbol, Symbol]

    def digits(self, units: dict[Symbol, None]) -> tuple[dict[Symbol, Int], list[tuple[Int, Int]]]:
        """Strides of units; (stride, size) of the other symbols."""
        outer: dict[Symbol, Int] = {}
        inner: list[tuple[Int, Int]] = []
        assert self.access.form is not None
        for one, stride in self.access.form.strides.items():
            name = self.names.get(one, one)
            if name in units:
                outer[name] = stride
            elif (size := self.group.sizes[one]) != 1:
                inner.append((stride, size))
        return outer, inner


def _is_local(write: _Side, read: _Side, units: dict[Symbol, None]) -> bool:
    """Does each unit read only what it writes?"""
    assert write.access.form is not None and read.access.form is not None
    if write.access.form.offset != read.access.form.offset:
        return False
    written, read_from = write.digits(units), read.digits(units)
    distinct = len({stride for stride, _ in written[1]}) == len(written[1])
    return distinct and written[0] == read_from[0] and set(read_from[1]) <= set(written[1])
