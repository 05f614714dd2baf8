"""Ops that write to memory which they read: eager refuses, or its result depends on its order."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import kiln
from kiln.graph.trace.recorder import Recorder
from kiln.graph.trace.storage_view import shares_elements
from kiln.runtime.guards.source import LocalSource
from kiln.support.events import EventSink
from kiln.symbolic import ShapeEnv
from kiln.tensor.spec import CPU, TensorSpec
from tests.faults.outcome import assert_like_eager, assert_same

PROGRAMS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "a row of out": lambda a, b: torch.add(a, b[1], out=b),
    "shifted out": lambda a, b: torch.add(a[1:], 1, out=a[:-1]),
    "transposed out": lambda a, b: torch.sin(a.t(), out=a),
    "out of where": lambda a, b: torch.where(a > 0, a, b[0], out=b),
    "out of cat": lambda a, b: torch.cat([a[:1], b[:2]], out=a),
    "out of a sum": lambda a, b: torch.sum(a, 0, out=a[0]),
    "out itself": lambda a, b: torch.add(a, b, out=b),
    "out elsewhere": lambda a, b: torch.add(a[:1], 1, out=a[1:2]),
    "a column in place": lambda a, b: a.sub_(a[:, 0:1]),
    "another column in place": lambda a, b: a[:, 0].sub_(a[:, 1]),
    "a list": lambda a, b: torch._foreach_add_([a], [a.t()]),
    "the same list": lambda a, b: torch._foreach_add_([a, b], [a, b]),
    "a store of its own row": lambda a, b: a.__setitem__(torch.tensor([1]), a[:1]),
    "a store of its diagonal": lambda a, b: a.index_put_((torch.tensor([1]),), a.diagonal(), accumulate=True),
    "a store of another row": lambda a, b: a[1:].index_put_((torch.tensor([1]),), a[:1], accumulate=True),
    "put of its own row": lambda a, b: a.put_(torch.tensor([3, 4, 5]), a[0]),
    "gathered into its index": lambda a, b: torch.gather(a, 0, i := b.long() % 3, out=i),
    "scattered by itself": lambda a, b: (i := b.long() % 3).scatter_(0, i, i),
    "columns moved": lambda a, b: a[:, 1:].copy_(a[:, :2]),
    "rows moved": lambda a, b: a[1:].copy_(a[:2]),
    "gaps written by as_strided": lambda a, b: a[:, ::2].as_strided((2, 2), (1, 2), 1).add_(2),
}


def attempt(function: Callable[..., object], *args: object) -> object:
    try:
        return function(*args)
    except RuntimeError:
        return "refused"


@pytest.mark.parametrize("name", PROGRAMS)
def test_memory_that_is_read_and_written(name: str) -> None:
    program = PROGRAMS[name]
    assert_like_eager(kiln.compile(program), program, torch.arange(9.0).view(3, 3), torch.arange(9.0, 0, -1).view(3, 3))


def test_large_tensors() -> None:
    def program(a: Tensor) -> Tensor:
        a[:, 1:].index_add_(0, torch.tensor([0]), a[:1, :-1])
        return a

    assert_like_eager(kiln.compile(program), program, torch.arange(20_000.0).view(100, 200))


def test_gaps_of_an_input_are_written() -> None:
    def program(a: Tensor) -> Tensor:
        view = a.as_strided((2, 2), (1, 2), 1)
        view.add_(2)
        return view

    expected, made = (torch.arange(24.0).view(4, 6)[:, ::2] for _ in range(2))
    torch.testing.assert_close(kiln.compile(program)(made), program(expected))
    torch.testing.assert_close(made._base, expected._base)


def test_gaps_of_an_input_are_read() -> None:
    def program(a: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        view = a.as_strided((2, 2), (1, 2), 0)
        made = torch.where(c > 0, view, view)
        return made, made.unsqueeze(0)

    a, c = torch.arange(24.0).view(4, 6)[:, ::2], torch.tensor(1.0)
    for made, expected in zip(kiln.compile(program)(a, c), program(a, c), strict=True):
        torch.testing.assert_close(made, expected)


LARGE: dict[str, Callable[[Tensor], object]] = {
    "a row": lambda a: torch.sum(a, 0, out=a[0]),
    "a column": lambda a: torch.sum(a, 1, out=a[:, 0]),
    "rows that meet": lambda a: torch.cumsum(a[:60], 0, out=a[40:]),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("dynamic", [False, True])
def test_large_memory_that_is_read_and_written(name: str, dynamic: bool) -> None:
    compiled = kiln.compile(LARGE[name], dynamic=dynamic)
    assert_like_eager(compiled, LARGE[name], torch.arange(10000.0).view(100, 100) / 10000)


def test_columns_and_rows_stay_in_the_graph() -> None:
    def program(a: Tensor) -> Tensor:
        a[:, 0].sub_(a[:, 1])
        a[:, :2].sub_(a[:, 2:4])
        return a[::2].sub_(a[1::2])

    for size in (4, 100):
        compiled = kiln.compile(program, fullgraph=True, backend="eager")
        assert_like_eager(compiled, program, torch.arange(float(size * size)).view(size, size))


def test_common_elements_of_views() -> None:
    generator = random.Random(0)

    def view() -> TensorSpec:
        rank = generator.randrange(4)
        sizes, strides = (tuple(generator.randrange(high) for _ in range(rank)) for high in (5, 13))
        return TensorSpec(torch.float32, sizes, strides, generator.randrange(11), CPU)

    def elements(spec: TensorSpec) -> set[int]:
        dims = zip(spec.sizes, spec.strides, strict=True)
        steps = [[index * stride for index in range(size)] for size, stride in dims]  # type: ignore[operator, arg-type]
        return {spec.offset + sum(step) for step in itertools.product(*steps)}  # type: ignore[misc]

    for _ in range(2000):
        left, right = view(), view()
        if left != right:
            assert shares_elements(left, right) == (not elements(left).isdisjoint(elements(right))), (left, right)


def test_lists_are_compared_in_linear_time() -> None:
    def calls(count: int) -> int:
        recorder = Recorder(env=ShapeEnv(), events=EventSink())
        lists = [
            [recorder.add_tensor(torch.ones(2), f"{k}{i}", LocalSource(f"{k}{i}")) for i in range(count)] for k in "xy"
        ]
        found = 0

        def count_call(frame: object, event: str, argument: object) -> None:
            nonlocal found
            found += event == "call"

        sys.setprofile(count_call)
        try:
            recorder.call(torch._foreach_add_, lists, {})
        finally:
            sys.setprofile(None)
        return found

    calls(1)
    assert calls(80) < 9 * calls(10)


def test_a_result_that_is_also_written_to_an_argument_has_memory_of_its_own() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2 + 1
        x.copy_(y)
        return y

    x = torch.ones(64)
    y = kiln.compile(program)(x)
    x.add_(1)
    assert torch.equal(y, torch.full((64,), 3.0)) and torch.equal(x, torch.full((64,), 4.0))


def test_an_argument_keeps_its_history() -> None:
    """Of what is read only, whether it is a leaf or was computed."""
    w = torch.ones(4, requires_grad=True)
    computed = w * 2
    history = computed.grad_fn
    compiled = kiln.compile(lambda x: (x * 3).sum(), backend="eager")
    compiled(computed).backward()
    assert computed.grad_fn is history and computed._version == 0
    compiled(w).backward()
    assert w.grad_fn is None and w.grad is not None and w.grad.tolist() == [9.0] * 4


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x[:4].add_(x[-4:]),
        lambda x: x[:4].index_add_(0, torch.arange(4), x[-4:]),
        lambda x: torch.cumsum(x[-4:], 0, out=x[:4]),
    ],
    ids=["add_", "index_add_", "cumsum"],
)
def test_what_is_apart_for_some_sizes_only(write: Callable[[Tensor], object]) -> None:
    def program(x: Tensor) -> Tensor:
        x = x.clone()
        write(x)
        return x

    compiled = kiln.compile(program, dynamic=True)
    for size in (16, 12, 6, 20):
        x = torch.arange(float(size))
        try:
            expected = program(x)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                compiled(x)
        else:
            assert torch.equal(compiled(x), expected)


def test_a_write_into_the_gaps_of_overlapping_strides() -> None:
    def program(x: Tensor) -> None:
        x.as_strided((1,), (1,), 3).add_(5)

    ours, theirs = torch.arange(10.0), torch.arange(10.0)
    kiln.compile(program)(ours.as_strided((2, 2, 2), (1, 1, 4)))
    program(theirs.as_strided((2, 2, 2), (1, 1, 4)))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("first", [0, 1])
def test_a_detached_result_with_gradients_of_its_own(first: int) -> None:
    def program(x: Tensor) -> list[Tensor]:
        whole = x * 3
        part = whole.detach()
        part.sub_(x.sum())
        return [whole, part] if first == 0 else [part, whole]

    gradients = []
    for run in (program, kiln.compile(program)):
        x = torch.arange(6.0).requires_grad_()
        left, right = run(x)
        (left.sum() + 2 * right.sum()).backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)  # type: ignore[arg-type]


def test_a_mask_that_was_written_with_a_differentiable_value() -> None:
    def program(x: Tensor, mask: Tensor) -> Tensor:
        mask[0] = x[0]  # it requires gradients from here on
        str(x)  # a graph break
        return x * mask

    def run(function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return function(torch.ones(3).requires_grad_(), torch.zeros(3, dtype=torch.bool))

    assert torch.equal(run(kiln.compile(program)), run(program))


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_contiguous_copy_of_an_input_with_gaps_and_gradients(dynamic: bool | None) -> None:
    def program(x: Tensor) -> object:
        copied = x.contiguous()
        copied.index_put_((torch.tensor([0]),), torch.ones(1, 2, 4), accumulate=True)
        return copied, x.is_contiguous(), x.stride(), x.storage_offset()

    outcomes = []
    for run in (program, kiln.compile(program, fullgraph=True, dynamic=dynamic)):
        whole = torch.ones(2, 3, 4).requires_grad_()
        copied, *layout = run(whole[:, 1:])  # type: ignore[misc]
        copied.sum().backward()
        outcomes.append((copied.tolist(), layout, whole.tolist(), whole.grad.tolist()))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("change", [Tensor.t_, lambda x: x.unsqueeze_(0)], ids=["t_", "unsqueeze_"])
def test_sizes_of_a_view_of_a_leaf(change: Callable[[Tensor], object]) -> None:
    def program(x: Tensor) -> Tensor:
        part = x[..., 0:]
        change(part)
        return part

    compiled = kiln.compile(program)
    for view in (lambda x: x[:], lambda x: (x * 1)[:]):
        outcomes = []
        for run in (program, compiled):
            try:
                outcomes.append(run(view(torch.ones(2, 3).requires_grad_())).tolist())
            except RuntimeError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]


INTERLEAVED: dict[str, Callable[[Tensor, int], object]] = {
    "steps": lambda x, n: x.view(-1)[::2].add_(x.view(-1)[1::2][: x.numel() // 2]),
    "columns": lambda x, n: x[:, :2].add_(x[:, 2:4]),
    "columns from an argument": lambda x, n: x[:, :n].add_(x[:, x.shape[1] - n :]),
    "columns and rows": lambda x, n: x[1:, :2].add_(x[:-1, 2:4]),
    "diagonals": lambda x, n: x.diagonal().add_(x.diagonal(-1).sum()),
    "into a column": lambda x, n: x[:, 1].sub_(x[:, n]),
    "as_strided": lambda x, n: x.as_strided((x.shape[0], 2), (x.stride(0), 1), n).add_(1),
    "as_strided outside": lambda x, n: x[:, :1].as_strided((x.shape[0], 2), (x.stride(0), 1), n).add_(1),
}


@pytest.mark.filterwarnings("ignore:.*runs eager")
@pytest.mark.parametrize("name", INTERLEAVED)
def test_interleaved_views_of_symbolic_sizes(name: str) -> None:
    """They were taken to stay apart: with other sizes they share elements, and eager raises."""
    program = INTERLEAVED[name]
    compiled = kiln.compile(program, dynamic=True)
    for rows, columns, n in ((4, 6, 1), (3, 8, 2), (6, 6, 3), (4, 4, 2), (5, 5, 4), (4, 4, 3), (4, 6, 1)):
        results = []
        for function in (program, compiled):
            x = torch.arange(float(rows * columns)).view(rows, columns)
            results.append((attempt(function, x, n), x))
        assert_same(results[1], results[0])


EXPANDED: dict[str, Callable[[Tensor], object]] = {
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(3),
    "fill_ of a part": lambda x: x[:, 0].fill_(2),
    "zero_ of a view": lambda x: x.view(3, 4).zero_() + 1,
    "assignment": lambda x: x.__setitem__(slice(None), 5),
    "fill_diagonal_": lambda x: x.fill_diagonal_(7.0),
    "add_, which eager refuses": lambda x: x.add_(1),
}


@pytest.mark.filterwarnings("ignore:.*runs eager")
@pytest.mark.parametrize("name", EXPANDED)
def test_writes_to_an_expanded_argument(name: str) -> None:
    """Eager writes one value to all elements that share memory."""
    results = []
    for function in (EXPANDED[name], kiln.compile(EXPANDED[name]), kiln.compile(EXPANDED[name], dynamic=True)):
        x = torch.arange(4.0)[None].expand(3, 4)
        results.append((attempt(function, x), x))
    assert_same(results[1], results[0])
    assert_same(results[2], results[0])


@pytest.mark.parametrize("backend", ["kiln", "eager"])
def test_writes_to_strides_that_overlap(backend: str) -> None:
    def program(x: Tensor) -> Tensor:
        windows = x.unfold(-1, 2, 1)
        windows[0].add_(1)
        windows.sub_(3)
        x.as_strided((2, 2), (1, 1)).mul_(2)
        return windows

    compiled = kiln.compile(program) if backend == "kiln" else kiln.compile(program, backend=backend)
    assert torch.equal(compiled(torch.arange(5.0)), program(torch.arange(5.0)))


LAYOUTS: list[Callable[[], Tensor]] = [
    lambda: torch.arange(30.0).as_strided((4, 4), (1, 1)),
    lambda: torch.arange(16.0).reshape(4, 4),
    lambda: torch.arange(4.0).reshape(1, 4),
    lambda: torch.arange(40.0).as_strided((5, 3), (2, 1)),
    lambda: torch.arange(20.0).reshape(4, 5)[:, 1:4],
    lambda: torch.arange(12.0).reshape(4, 3).t(),
]


@pytest.mark.parametrize("first", range(len(LAYOUTS)))
def test_writes_to_symbolic_strides_that_overlap(first: int) -> None:
    """The last write wins, which only eager's kernel knows."""

    def program(x: Tensor) -> Tensor:
        return x.add_(1)

    compiled = kiln.compile(program, dynamic=True, backend="eager", options={"cache": False})
    for make in (LAYOUTS[first], *LAYOUTS):
        x, expected = make(), program(make())
        assert torch.equal(compiled(x), expected) and torch.equal(x, expected)


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1, 2, 0)])
@pytest.mark.parametrize("form", ["rows", "columns", "parts"])
def test_results_of_a_whole_step_that_are_parts_of_one_tensor(form: str, order: tuple[int, ...]) -> None:
    """Of a tensor that the forward made and the backward reads: the second half returns parts of its copy."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)

    def program(x: Tensor) -> list[Tensor]:
        y = model(x)
        y.square().mean().backward()
        parts = {"rows": list(y.detach()), "columns": list(y.detach().t()), "parts": y.detach().split([1, 1, 1])}[form]
        return [parts[number] for number in order]

    x = torch.randn(3, 4)
    compiled = kiln.compile(program)
    for _ in range(2):
        expected, found = program(x), compiled(x)
        torch.testing.assert_close(found, expected)
        found[0].zero_(), expected[0].zero_()
        torch.testing.assert_close(found, expected)


class Holder:
    held: torch.Tensor


def written_behind_a_break(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.unsqueeze_(0)
    y.add_(3)
    return x * 2


def read_behind_a_write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.add_(3)
    return Holder.held * 2


def read_as_bits(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.add_(3)
    return Holder.held.view(torch.int32) + 1


OVERLAPPING_PARTS: list[Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = [
    lambda t: (torch.zeros(3, 4), t[:, 1:]),
    lambda t: (t, t[:, 1:]),
    lambda t: (t[:, :2], t[:, 1:]),
    lambda t: (t[:2], t[1:]),
    lambda t: (t[1:], t),
]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [written_behind_a_break, read_behind_a_write, read_as_bits])
def test_a_write_is_seen_through_an_input_that_is_read_later(
    program: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], dynamic: bool | None
) -> None:
    for first in range(len(OVERLAPPING_PARTS)):
        compiled = kiln.compile(program, dynamic=dynamic, options={"cache": False})
        for parts in (*OVERLAPPING_PARTS[first:], *OVERLAPPING_PARTS[:first]):
            results = []
            for function in (compiled, program):
                x, y = parts(torch.zeros(3, 4))
                Holder.held = x
                results.append(function(x, y))
            torch.testing.assert_close(*results)


PLACES: dict[str, Callable[[Tensor], object]] = {
    "a view": lambda x: x.as_strided((2, 2), (1, 3), 1),
    "a change": lambda x: (x.as_strided((2, 2), (1, 3), 1).add_(10), x.sum()),
    "a change behind another": lambda x: (x.add_(1), x.as_strided((2,), (1,), 3).zero_(), x * 1),
    "a copy": lambda x: torch.as_strided_copy(x, (2, 2), (1, 3), 1),
    "a store": lambda x: torch.as_strided_scatter(x, torch.zeros(2), (2,), (1,), 4),
    "the first element": lambda x: x.as_strided((2,), (1,), 0),
    "where the tensor begins": lambda x: (x.as_strided((2,), (1,)).mul_(2), x.sum()),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PLACES)
def test_places_in_memory_are_counted_from_its_beginning(name: str, dynamic: bool | None) -> None:
    """Not from the beginning of the tensor, which may be another in each call."""
    compiled = kiln.compile(PLACES[name], dynamic=dynamic)
    for begin in (0, 2, 3, 0, 2):
        expected, found = torch.arange(12.0), torch.arange(12.0)
        assert_same(compiled(found[begin:]), PLACES[name](expected[begin:]))
        assert torch.equal(found, expected)


def changed_first(a: Tensor, b: Tensor) -> Tensor:
    a.mul_(2)
    return (a * b).sum() + b.sin().sum()


def changed_last(a: Tensor, b: Tensor) -> Tensor:
    y = b.sin()
    a.mul_(2)
    return y.sum() + a.sum()


def changed_without_gradients(a: Tensor, b: Tensor) -> Tensor:
    y = b.sin()
    with torch.no_grad():
        a.mul_(2)
    return y.sum() + (a * b).sum()


@pytest.mark.parametrize("detached", ["", "a", "b", "ab"])
@pytest.mark.parametrize("function", [changed_first, changed_last, changed_without_gradients])
def test_parts_of_one_tensor_have_one_version(function: Callable[[Tensor, Tensor], Tensor], detached: str) -> None:
    """A backward that has saved one of them sees whether the other was changed before or after that."""

    def outcome(function: Callable[[Tensor, Tensor], Tensor]) -> object:
        leaf = torch.arange(6.0, requires_grad=True)
        whole = leaf * 1
        a, b = [(whole.detach() if name in detached else whole)[place] for name, place in PARTS.items()]
        result = function(a, b)
        try:
            (gradient,) = torch.autograd.grad(result, leaf) if result.requires_grad else (None,)
        except RuntimeError as error:
            assert "inplace operation" in str(error)
            return "changed"
        return result.detach(), gradient, a.detach(), b.detach(), a._version

    compiled = kiln.compile(function)
    for _ in range(2):
        assert_same(outcome(compiled), outcome(function))


PARTS = {"a": slice(3), "b": slice(3, 6)}


def in_turns(a: Tensor) -> Tensor:
    torch._foreach_addcmul_([a, a], [a, a], [a, a], [0.5, 0.25])
    torch._foreach_lerp_([a, a], [a + 1, a * 2], 0.5)
    torch._foreach_clamp_max_([a, a[1:]], [3.0, 2.5])
    return a


LISTS: dict[str, Callable[[Tensor], object]] = {
    "twice": lambda a: torch._foreach_add_([a, a], 1),
    "a part again": lambda a: torch._foreach_mul_([a, a[:1]], [2.0, 3.0]),
    "each reads the other": lambda a: torch._foreach_mul_([a[:2], a[2:4]], [a[2:4], a[:2]]),
    "read by the next": lambda a: torch._foreach_add_([a, torch.ones_like(a)], [a, a], alpha=2),
    "parts of another index": lambda a: torch._foreach_add_([a[1:], torch.ones_like(a)], [torch.ones_like(a)[1:], a]),
    "numbers in a tensor": lambda a: torch._foreach_addcdiv_(
        [a, a], [a + 1, a], [a + 3, a * 2], torch.tensor([0.5, 2])
    ),
    "apart": lambda a: torch._foreach_add_([a[:2], a[2:4], a[4:]], [a[:2], a[2:4], a[4:]]),
    "columns": lambda a: torch._foreach_add_([a[::2], a[1::2]], 1),
    "by three of them": in_turns,
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", LISTS)
def test_lists_of_tensors_that_share_memory(name: str, dynamic: bool | None) -> None:
    """Eager takes one after the other; all were computed before the first was written."""
    compiled = kiln.compile(LISTS[name], dynamic=dynamic)
    for size in (6, 5, 8, 7, 4):
        expected, found = torch.arange(1.0, size + 1), torch.arange(1.0, size + 1)
        assert_same(compiled(found), LISTS[name](expected))
        torch.testing.assert_close(found, expected)


FIRST = torch.tensor([1, 0])
ALL_AT_TWO: dict[str, Callable[[Tensor], Tensor]] = {
    "index_copy_": lambda x: x.index_copy_(0, FIRST, x[:2]),
    "index_add_": lambda x: x.index_add_(0, FIRST, x[:2]),
    "index_select": lambda x: torch.index_select(x, 0, FIRST, out=x[:2]),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", ALL_AT_TWO)
def test_a_part_that_is_all_for_these_sizes(name: str, dynamic: bool | None) -> None:
    """Of two rows, `x[:2]` is `x`, which eager refuses likewise."""
    compiled = kiln.compile(ALL_AT_TWO[name], dynamic=dynamic)
    for rows in (2, 4, 5, 2):
        with pytest.raises(RuntimeError, match="memory location"):
            compiled(torch.ones(rows, 2))
