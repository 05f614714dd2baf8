"""Sizes of the results of an op without a rule, as expressions: the op is probed for several numbers in each symbol.

    aten.linalg_qr(x: f32[s0, s1])    (s0, s1) = (6, 7), (2, 3), (13, 11), ...    =>    f32[s0, min(s0, s1)], ...
    aten._fft_r2c(x: f32[s0])         s0 = 8, 9, 2, 13                          =>    c64[s0//2 + 1]

A size of a result is taken for the first candidate that gives its number at every point: a constant, an affine function
of a size of an argument, a half, a minimum, maximum or product of two. So is a stride of a result with gaps. Where none
does, or where dtypes differ from point to point, the caller specialises the symbols. At run time the executor compares
each result of an ATen call with its plan, so a wrong guess is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from typing import final

from kiln.symbolic import Expr, Int, Relation, ceil_div, evaluate, rel_eq, rel_lt, substituted, sym_max, sym_min
from kiln.symbolic.expr import Symbol
from kiln.tensor.spec import ScalarSpec, Spec, TensorSpec, contiguous_strides

Point = Mapping[Symbol, int]
Part = TensorSpec | ScalarSpec | None

MOST_SYMBOLS, FEWEST_POINTS, MOST_POINTS = 4, 3, 5
"""Symbols of a probe, and points that an expression has to fit; at fewer, several expressions give the same numbers."""
SMALLEST, SMALLEST_OF_INDICES = 2, 4
"""The latter is more than the integers of a probe, which may be indices that a kernel does not check."""
MODEST = 64
"""A probe does not exceed constants of the arguments that are larger."""


def free_symbols(value: object) -> set[Symbol]:
    """In the sizes, strides and numbers of arguments."""
    if isinstance(value, TensorSpec):
        return free_symbols((value.sizes, value.strides))
    if isinstance(value, tuple):
        return set().union(*map(free_symbols, value))
    return set(value.free_symbols()) if isinstance(value, Expr) else set()


def at_point(value: object, point: Point) -> object:
    """The arguments with numbers for symbols."""
    if isinstance(value, TensorSpec):
        sizes, strides = (tuple([evaluate(size, point) for size in part]) for part in (value.sizes, value.strides))
        return TensorSpec(value.dtype, sizes, strides, 0, value.device)
    if isinstance(value, tuple):
        return tuple([at_point(part, point) for part in value])
    return evaluate(value, point) if isinstance(value, Expr) else value


def numbers_of(value: object) -> list[Int]:
    """Sizes of the tensors, and numbers, among arguments."""
    if isinstance(value, TensorSpec):
        return list(value.sizes)
    if isinstance(value, tuple):
        return [number for part in value for number in numbers_of(part)]
    return [value] if isinstance(value, Expr) or type(value) is int else []


def has_integers(value: object) -> bool:
    """Whether a tensor may hold indices."""
    if isinstance(value, TensorSpec):
        return not value.dtype.is_floating_point and not value.dtype.is_complex
    return isinstance(value, tuple) and any(map(has_integers, value))


def points(
    symbols: Sequence[Symbol], hints: Sequence[int], constants: Sequence[int], least: int, guards: Sequence[Relation]
) -> list[Point]:
    """The sizes of the call, and others: small and large ones, in both orders, and multiples; where the guards hold.

    The region is called with no others, and kernels may rely on them: `_fft_c2r` writes past the end of its result.
    """
    above = max([constant for constant in constants if constant <= MODEST], default=8)
    count = len(symbols)
    trials = [
        list(hints),
        [hint + 1 + number for number, hint in enumerate(hints)],
        [least + number for number in range(count)],
        [above + 3 + 2 * (count - number) for number in range(count)],
        [above + 2 + 3 * number for number in range(count)],
        [hint * (number + 2) for number, hint in enumerate(hints)],
        [hint * (2 * (count - number) + 3) for number, hint in enumerate(hints)],
    ]
    known = [guard for guard in guards if guard.free_symbols() <= set(symbols)]
    found: list[Point] = [dict(zip(symbols, trial, strict=True)) for trial in trials]
    return [point for point in found if all([guard.evaluate(point) for guard in known])][:MOST_POINTS]


def probe_symbols(
    probe: Callable[[object], Spec],
    arguments: object,
    hint_of: Callable[[Symbol], int],
    decide: Callable[[Relation | bool], bool],
    guards: Sequence[Relation] = (),
) -> Spec | None:
    """The specs of the results of `probe(arguments)` where `guards` hold, or None if symbols have to be specialised.

    An op that takes only equal sizes (square matrices) is probed once more, with those equal that are equal in this
    call; `decide` guards that. It also guards on which side of a large constant a size is, since no probe goes there.
    """
    made = probe_apart(probe, arguments, hint_of, guards)
    first: dict[int, Symbol] = {}
    for symbol in sorted(free_symbols(arguments), key=lambda symbol: symbol.name):
        first.setdefault(hint_of(symbol), symbol)
    equal = {symbol: first[hint_of(symbol)] for symbol in free_symbols(arguments)}
    tied: dict[Symbol, Int] = {symbol: other for symbol, other in equal.items() if symbol is not other}
    if made is None and tied:
        guards = [guard for guard in [known.substitute(tied) for known in guards] if isinstance(guard, Relation)]
        made = probe_apart(probe, with_symbols(arguments, tied), hint_of, guards)
        if made is not None and not all(decide(rel_eq(symbol, equal[symbol])) for symbol in tied):
            return None
    if made is not None:
        numbers = numbers_of(arguments)
        for size in [number for number in numbers if isinstance(number, Expr)]:
            for constant in [number for number in numbers if isinstance(number, int) and number > MODEST]:
                decide(rel_lt(size, constant))
    return made


def with_symbols(value: object, changed: Mapping[Symbol, Int]) -> object:
    """The arguments with some symbols replaced."""
    if isinstance(value, TensorSpec):
        sizes, strides = (tuple([substituted(size, changed) for size in part]) for part in (value.sizes, value.strides))
        return TensorSpec(value.dtype, sizes, strides, value.offset, value.device)
    if isinstance(value, tuple):
        return tuple([with_symbols(part, changed) for part in value])
    return value.substitute(changed) if isinstance(value, Expr) else value


def probe_apart(
    probe: Callable[[object], Spec],
    arguments: object,
    hint_of: Callable[[Symbol], int],
    guards: Sequence[Relation],
) -> Spec | None:
    """The same where all symbols may differ."""
    symbols = sorted(free_symbols(arguments), key=lambda symbol: symbol.name)
    if not 1 <= len(symbols) <= MOST_SYMBOLS:
        return None
    numbers = list(dict.fromkeys(numbers_of(arguments)))
    constants = [number for number in numbers if isinstance(number, int)]
    tried: list[Point] = []
    found: list[tuple[Part, ...]] = []
    is_single = True
    least = SMALLEST_OF_INDICES if has_integers(arguments) else SMALLEST
    for point in points(symbols, [hint_of(symbol) for symbol in symbols], constants, least, guards):
        with suppress(Exception):  # sizes that the op refuses, as eager will
            spec = probe(at_point(arguments, point))
            is_single = not isinstance(spec, tuple)
            found.append(spec if isinstance(spec, tuple) else (spec,))  # type: ignore[arg-type]
            tried.append(point)
    if len(tried) < FEWEST_POINTS or len({len(parts) for parts in found}) != 1:
        return None
    try:
        made = [fitted_part(parts, numbers, tried) for parts in zip(*found, strict=True)]
    except NothingFits:
        return None
    return made[0] if is_single else tuple(made)  # type: ignore[return-value]


@final
class NothingFits(Exception):
    """No expression has the sizes that were found."""


def fitted_part(parts: Sequence[Part], numbers: Sequence[Int], tried: Sequence[Point]) -> Part:
    """One result from what it was at each point."""
    first = parts[0]
    if not isinstance(first, TensorSpec):
        if any(part != first for part in parts):
            raise NothingFits
        return first
    tensors = [part for part in parts if isinstance(part, TensorSpec)]
    alike = {(tensor.dtype, tensor.rank, tensor.device) for tensor in tensors}
    if len(tensors) < len(parts) or len(alike) != 1:
        raise NothingFits
    sizes: list[Int] = []
    for axis in range(first.rank):
        size = fit([int(str(tensor.sizes[axis])) for tensor in tensors], numbers, tried)
        if size is None:
            raise NothingFits
        sizes.append(size)
    strides = fitted_strides(tensors, tuple(sizes))
    if strides is None:
        fitting = [
            fit([int(str(tensor.strides[axis])) for tensor in tensors], numbers, tried) for axis in range(first.rank)
        ]
        strides = tuple([stride for stride in fitting if stride is not None])
    if len(strides) < first.rank:
        raise NothingFits
    return TensorSpec(first.dtype, tuple(sizes), strides, 0, first.device)


def fitted_strides(tensors: Sequence[TensorSpec], sizes: tuple[Int, ...]) -> tuple[Int, ...] | None:
    """Those of a dense tensor whose axes lie in memory in the same order at each point."""
    if all(tensor.strides == contiguous_strides(tensor.sizes) for tensor in tensors):
        return contiguous_strides(sizes)
    order = sorted(range(len(sizes)), key=lambda axis: (-int(str(tensors[0].strides[axis])), axis))
    if all(tensor.strides == strides_in_order(tensor.sizes, order) for tensor in tensors):
        return strides_in_order(sizes, order)
    return None


def strides_in_order(sizes: Sequence[Int], order: Sequence[int]) -> tuple[Int, ...]:
    dense = contiguous_strides(tuple([sizes[axis] for axis in order]))
    return tuple([dense[order.index(axis)] for axis in range(len(sizes))])


def fit(values: Sequence[int], numbers: Sequence[Int], tried: Sequence[Point]) -> Int | None:
    """The first candidate that has these values at the points."""
    if len(set(values)) == 1:
        return values[0]
    for candidate in candidates(values, numbers, tried):
        if all(evaluate(candidate, point) == value for point, value in zip(tried, values, strict=True)):
            return candidate
    return None


def candidates(values: Sequence[int], numbers: Sequence[Int], tried: Sequence[Point]) -> Iterator[Int]:
    terms = [number for number in numbers if isinstance(number, Expr)]
    yield from terms
    for term in terms:
        yield from affine(values, term, tried)
    for term in terms:
        yield from (term // 2 + 1, term // 2, ceil_div(term, 2))
    for left, right in combinations(numbers, 2):
        yield from (sym_min(left, right), sym_max(left, right), left * right, left + right)


def affine(values: Sequence[int], term: Expr, tried: Sequence[Point]) -> Iterator[Int]:
    """`factor * term + rest` through two of the points."""
    at = [evaluate(term, point) for point in tried]
    other = next((number for number, value in enumerate(at) if value != at[0]), None)
    if other is None:
        return
    factor, remainder = divmod(values[other] - values[0], at[other] - at[0])
    if remainder == 0 and factor > 0:
        yield factor * term + (values[0] - factor * at[0])
