"""Programs that once gave a value, an alias or a gradient that eager does not give."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import kiln
from kiln.graph.ir.interpret import interpret
from kiln.graph.ops.breaks import UnsupportedOp
from tests.faults.outcome import assert_like_eager, assert_same, outcome
from tests.trace.harness import trace

LIB = torch.library.Library("kiln_faults", "DEF")
LIB.define("halves(Tensor x) -> (Tensor, Tensor, Tensor)")
LIB.impl("halves", lambda x: (lambda y: (y[:2], y[2:], y[1:3]))(x * 2), "CPU")


@pytest.mark.parametrize("module", [torch.nn.GRU, torch.nn.LSTM, torch.nn.RNN])
@pytest.mark.parametrize("sizes", [(1, 4, 4), (2, 4, 4), (4, 4)], ids=["batch_1", "batch_2", "unbatched"])
def test_recurrent_layers(module: type[torch.nn.RNNBase], sizes: tuple[int, ...]) -> None:
    """The results of aten.unsafe_split are parts of one memory, which kernels wrote to in place."""
    layer = module(4, 4, batch_first=True, bidirectional=True)
    with torch.no_grad():
        assert_like_eager(kiln.compile(lambda x: layer(x)[0]), lambda x: layer(x)[0], torch.rand(*sizes))


@pytest.mark.unrecorded  # an operator that only this test knows
def test_results_of_an_operator_that_share_memory() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, last, middle = torch.ops.kiln_faults.halves(x)
        first = first + 1
        return first, last * first, middle - first

    assert_like_eager(kiln.compile(program), program, torch.arange(4.0))


def test_a_detached_result_beside_what_it_was_detached_from() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        d = y.detach()
        return d[0], d, y

    for function in (program, kiln.compile(program)):
        results = function(torch.ones(3, requires_grad=True))
        assert [result.requires_grad for result in results] == [False, False, True]
        assert results[1].data_ptr() == results[2].data_ptr()


def test_an_input_that_is_detached_keeps_its_own_graph() -> None:
    def program(e: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (b * e.detach()).sum()

    b = torch.ones(3, requires_grad=True)
    e = torch.ones(3, requires_grad=True) * 2
    e.sum().backward()
    kiln.compile(program)(e, b).backward()
    assert torch.equal(b.grad, torch.full((3,), 2.0))


@pytest.mark.filterwarnings("ignore:.*runs eager")
def test_the_gradient_of_a_view_of_an_expanded_input() -> None:
    for view in (lambda x: x[:2], lambda x: x.view(5)[1:3]):
        grads = []
        for function in (view, kiln.compile(view)):
            x = torch.ones(1).expand(5).detach().requires_grad_()
            function(x).backward(torch.tensor([1.0, 10.0]))
            grads.append(x.grad)
        assert torch.equal(*grads)


@pytest.mark.parametrize("rows", [(14, 7), (7, 14), (21, 14, 7)], ids=str)
def test_whether_reshape_copies(rows: tuple[int, ...]) -> None:
    """`reshape` of a column: a view if the result has one row, else a copy."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 7)

    compiled = kiln.compile(program)
    for n in rows:
        x = torch.arange(2.0 * n).reshape(n, 2)[:, :1]
        y = compiled(x)
        assert torch.equal(y, program(x)) and y.stride() == program(x).stride()
        assert (y.data_ptr() == x.data_ptr()) == (program(x).data_ptr() == x.data_ptr())


def test_a_view_that_eager_refuses() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.view(-1)

    compiled = kiln.compile(program)
    for rows, columns in ((2, 3), (1, 3), (4, 3), (3, 1), (1, 1)):
        assert_like_eager(compiled, program, torch.arange(float(rows * columns)).reshape(rows, columns).t())


@pytest.mark.parametrize("scale", [1e30, 1e-30, 1.0])
def test_deviation_beyond_the_squares_of_float32(scale: float) -> None:
    for program in (torch.std, torch.std_mean, lambda x: x[None].std(1)):
        assert_like_eager(kiln.compile(program), program, torch.tensor([1.0, 2.0, 3.0]) * scale)


HALF = torch.tensor([10.0, -10.0, 9.9375, 0.30078125, 0.1, -0.3, 0.0])
STEPS = {
    "threshold": lambda x: torch.nn.functional.threshold(x, 9.99, 20.1),
    "threshold_near_zero": lambda x: torch.nn.functional.threshold(x, 0.3, 20.1),
    "hardtanh": lambda x: torch.nn.functional.hardtanh(x, -0.1, 0.1),
    "hardshrink": lambda x: torch.nn.functional.hardshrink(x, 0.3),
    "floor_divide": lambda x: x // 9.99,
    "floor_div": lambda x: torch.div(x, 0.1, rounding_mode="floor"),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", STEPS)
def test_a_number_is_not_rounded_before_it_is_compared(name: str, dtype: torch.dtype) -> None:
    x, grads = HALF.to(dtype), []
    assert_like_eager(kiln.compile(STEPS[name]), STEPS[name], x)
    if "div" not in name:
        for function in (STEPS[name], kiln.compile(STEPS[name])):
            leaf = x.clone().requires_grad_()
            function(leaf).sum().backward()
            grads.append(leaf.grad)
        assert torch.equal(*grads)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_shifts_by_more_than_the_width(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x >> y, x << y, x >> 9, x >> 8

    x = torch.arange(-100, 156).to(dtype)
    for shift in (0, 1, 7, 8, 9, 31, 64, 100):
        assert_like_eager(kiln.compile(program), program, x, torch.full_like(x, shift))


@pytest.mark.parametrize("name", ["addcmul", "addcdiv"])
def test_foreach_with_one_number_of_a_tensor_for_each(name: str) -> None:
    function = getattr(torch, f"_foreach_{name}")
    lists = [[torch.rand(3) + number, torch.rand(2) + number] for number in range(3)]
    scalars = torch.tensor([2.0, 5.0])
    expected = function(*lists, scalars)
    got = kiln.compile(lambda *lists: function(*lists, scalars))(*lists)
    for result, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(result, wanted)


def test_the_gradient_of_one_result_of_several_with_symbolic_sizes() -> None:
    """The size was read from a tangent that is absent: KILN3301."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x.sum()

    for result in (0, 1):
        x = torch.ones(5, 3, requires_grad=True)
        compiled = kiln.compile(program, dynamic=True, fullgraph=True)
        compiled(x)[result].sum().backward()
        assert torch.equal(x.grad, torch.full((5, 3), 2.0 - result))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int16])
def test_an_index_of_rank_0(dtype: torch.dtype) -> None:
    """Eager takes uint8, like bool, for a mask."""
    compiled = kiln.compile(lambda x, i: x[i])
    for number in (1, 0, 1):
        assert_like_eager(compiled, lambda x, i: x[i], torch.ones(3, 4), torch.tensor(number, dtype=dtype))


def checked_after_random(x: torch.Tensor) -> torch.Tensor:
    y = torch.rand(4)
    if x.sum() + y.sum() < 0:
        raise ValueError("negative")
    return x * y


def test_a_check_that_fails_draws_no_other_random_numbers() -> None:
    compiled = kiln.compile(checked_after_random, options={"random": "eager"})
    for x in (torch.ones(4), -10 * torch.ones(4), torch.ones(4)):
        assert_like_eager(compiled, checked_after_random, x)
        states = []
        for function in (checked_after_random, compiled):
            torch.manual_seed(0)
            outcome(function, (x,))
            states.append(torch.get_rng_state())
        assert torch.equal(*states)


def test_numbers_drawn_by_a_call_that_cannot_be_traced() -> None:
    """`svd_lowrank` draws, then breaks: the draw stayed in the graph, and eager drew once more."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.svd_lowrank(x * 2, q=2)[0]

    x = torch.randn(6, 6, dtype=torch.complex64)
    torch.manual_seed(1)
    expected = program(x)
    torch.manual_seed(1)
    assert torch.equal(kiln.compile(program, options={"random": "eager"})(x), expected)


@pytest.mark.parametrize("dtype", [torch.float8_e5m2fnuz, torch.float8_e4m3fnuz, torch.float8_e8m0fnu])
def test_narrow_element_types(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ones(2, dtype=dtype).float(), x.to(dtype).float()

    x = torch.tensor([1.0, 2.0, 0.5])
    assert_like_eager(kiln.compile(program, fullgraph=True), program, x)


def test_a_complex_constant_that_depends_on_a_size() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (2, 3), eps=0.5)

    x = torch.randn(2, 3, dtype=torch.complex64)
    assert_like_eager(kiln.compile(program, dynamic=True, fullgraph=True), program, x)


def add_flipped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[: len(y)].add_(y.flip(0))
    return x.sum()


def fill_read(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = y.sin()
    x[1].masked_fill_(x[1] > 0.25, 0.125)
    return z


def copy_part(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = y * 2
    x[:2].copy_(y[-2:].clone())
    return z + y


@pytest.mark.parametrize("program", [add_flipped, fill_read, copy_part])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("whole_first", [False, True])
def test_inputs_that_share_memory_with_a_written_input(
    program: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], first: int, whole_first: bool
) -> None:
    """What they held before the write is read before it."""
    results = []
    for function in (program, kiln.compile(program, fullgraph=True)):
        x = torch.arange(24.0).reshape(4, 6) / 24
        results.append((function(x, x[first:]) if whole_first or first else function(x[:], x), x))
    assert_same(results[1], results[0])


NUMBERS: list[tuple[torch.dtype, torch.Tensor]] = [
    (torch.float32, torch.tensor(1e300, dtype=torch.float64)),
    (torch.float32, torch.tensor(float("-inf"), dtype=torch.float64)),
    (torch.float32, torch.tensor(float("nan"), dtype=torch.float64)),
    (torch.float16, torch.tensor(70000)),
    (torch.float16, torch.tensor(-70000.0)),
    (torch.float16, torch.tensor(-1e4)),
    (torch.bfloat16, torch.tensor(3.4e38)),
    (torch.complex64, torch.tensor(1e300, dtype=torch.float64)),
    (torch.float32, torch.tensor(1 + 2j)),
    (torch.uint8, torch.tensor(-1)),
    (torch.uint8, torch.tensor(300)),
]


@pytest.mark.parametrize("name", ["masked_fill", "index_fill"])
def test_numbers_from_tensors_that_do_not_fit(name: str) -> None:
    """Eager takes the value of the tensor, and refuses one that is out of range."""

    def masked_fill(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(x != x.flip(0), value)

    def index_fill(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return x.index_fill(0, torch.tensor([1]), value)

    program = masked_fill if name == "masked_fill" else index_fill

    def graph(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        try:
            found = trace(program, [x, value]).trace
        except UnsupportedOp:  # left to eager
            return program(x, value)
        result = interpret(found.graph, [x, value], constants=found.constants).outputs[0]
        assert isinstance(result, torch.Tensor)
        return result

    for dtype, value in NUMBERS:
        assert_like_eager(graph, program, torch.tensor([0, 1, 1]).to(dtype), value)
    assert_like_eager(kiln.compile(program), program, torch.ones(3, dtype=torch.float16), torch.tensor(1e5))


def test_the_tangent_of_a_part_of_a_tensor() -> None:
    """It lies in zeros as large as the storage that the part lies in."""

    def program(x: torch.Tensor, tangent: torch.Tensor) -> object:
        whole = x * 2
        parts = [torch.func.jvp(lambda a: a.as_strided((2, 2), (2, 1), 4) * 1, (whole[0],), (tangent * 1,))]
        parts.append(torch.func.jvp(lambda a: a.t() * a, (whole[1],), (tangent * 1,)))
        return parts

    assert_like_eager(kiln.compile(program), program, torch.arange(12.0).view(3, 2, 2), torch.ones(2, 2))


def test_materialised_gradients() -> None:
    def program(x: torch.Tensor, y: torch.Tensor, create: bool, unused: bool | None) -> object:
        found = torch.autograd.grad(
            (x * x).sum(), [x, y], create_graph=create, allow_unused=unused, materialize_grads=True
        )
        return [(grad.detach(), grad.requires_grad) for grad in found]

    x, y = torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)
    for create, unused in ((True, None), (False, True), (False, False)):
        assert_like_eager(kiln.compile(program, backend="eager"), program, x, y, create, unused)


def test_messages_of_programs_that_look_like_those_of_linalg() -> None:
    for message in ("mine: the input matrix is singular or not positive-definite", "mine [LinAlgError]"):

        def program(x: torch.Tensor, message: str = message) -> torch.Tensor:
            torch._assert_async((x > 100).all(), message)
            return x + 1

        with pytest.raises(RuntimeError, match="mine") as caught:
            kiln.compile(program)(torch.ones(3))
        assert not isinstance(caught.value, torch.linalg.LinAlgError)


@pytest.mark.filterwarnings("ignore:.*runs eager")
def test_the_gradient_of_as_strided_ends_at_its_view() -> None:
    """What lies outside of the view gets none."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        part = x[1]
        return part, part.as_strided((2, 2), (1, 2), 0)

    gradients = []
    for function in (program, kiln.compile(program)):
        x = torch.arange(8.0).view(2, 4).requires_grad_()
        part, moved = function(x)
        (part.sum() + 2 * moved.sum()).backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)  # type: ignore[arg-type]


ZEROS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "relu6": torch.nn.functional.relu6,
    "clamp above 0": lambda x: x.clamp(min=0.0),
    "clamp above -0": lambda x: x.clamp(min=-0.0),
    "clamp below 0": lambda x: x.clamp(max=0.0),
    "clamp below -0": lambda x: x.clamp(max=-0.0),
    "fmax": lambda x: torch.fmax(x, -x),
    "fmin": lambda x: torch.fmin(x, -x),
}


@pytest.mark.parametrize("name", ZEROS)
@pytest.mark.parametrize("count", [3, 40])
def test_signs_of_zeros_that_are_bounded(name: str, count: int) -> None:
    """A zero stays as it is, whichever sign the bound has."""
    program = ZEROS[name]
    x = torch.tensor([0.0, -0.0, float("nan"), 1.0]).repeat(count)[:-1]
    assert torch.equal(kiln.compile(program)(x).signbit()[:2], program(x).signbit()[:2])
    assert_like_eager(kiln.compile(program, fullgraph=True), program, x)


def test_a_weight_of_rank_0_of_another_dtype() -> None:
    program = lambda x, weight: torch.lerp(x, x * 2, weight)  # noqa: E731
    for weight in (True, 1, torch.tensor(0.3).double(), torch.tensor(0.3).half()):
        compiled = kiln.compile(program, fullgraph=True)
        assert_like_eager(compiled, program, torch.arange(6.0).view(2, 3), torch.as_tensor(weight))
        assert not kiln.report_of(compiled).eager_reasons


def test_the_gradient_of_logit_outside_of_its_domain() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(x.logit().sum(), x)
        return gradient

    x = torch.tensor([-1.0, -0.0, 0.0, 0.5, 1.0, 2.0], requires_grad=True)
    assert_like_eager(kiln.compile(program, fullgraph=True), program, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex64])
def test_the_layout_of_a_power_of_zero(dtype: torch.dtype) -> None:
    for x in (torch.ones(3, 2, dtype=dtype).t(), torch.ones(2, 1, 4, 4, dtype=dtype).permute(0, 2, 3, 1)):
        result, expected = kiln.compile(lambda x: x**0)(x), x**0
        assert torch.equal(result, expected) and result.stride() == expected.stride()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_roots_of_negative_zero_and_infinity(dtype: torch.dtype) -> None:
    """Eager takes the root of numbers with exponent 0.5, but in float16 on a CPU; a symbolic exponent may be one."""
    program = lambda x, exponent: (x**exponent, x.pow(-exponent))  # noqa: E731
    compiled = kiln.compile(program, dynamic=True, fullgraph=True)
    x = torch.tensor([-0.0, 0.0, 4.0, float("-inf"), float("inf"), float("nan")], dtype=dtype)
    for exponent in (0.7, 0.5, -0.5, 1.5):
        for actual, expected in zip(compiled(x, exponent), program(x, exponent), strict=True):
            torch.testing.assert_close(actual, expected, equal_nan=True)
            assert torch.equal(actual.signbit()[:5] & (actual == 0)[:5], expected.signbit()[:5] & (expected == 0)[:5])
    for exponent in (0.5, -0.5):
        assert_like_eager(kiln.compile(lambda x, e=exponent: x**e), lambda x, e=exponent: x**e, x)
