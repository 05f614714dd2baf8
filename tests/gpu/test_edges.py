"""Compiled for the GPU against eager: odd tensors, dtypes, streams, memory that runs out or is shared."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CUDA = torch.device("cuda", 0)
GIB = 1 << 30


@pytest.fixture(autouse=True)
def settled() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    gc.collect()
    torch.cuda.synchronize()


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    return kiln.compile(function, fullgraph=True, **options)


def agree(function: Callable[..., Any], *inputs: Tensor, **tolerance: float) -> None:
    """Values, dtypes, strides and devices are eager's."""
    expected, got = function(*inputs), compiled(function)(*inputs)
    torch.testing.assert_close(got, expected, check_stride=True, **tolerance)


def mixed(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Point by point, along rows, along columns."""
    y = torch.tanh(x) * 0.5 + 1
    return y, y.sum(-1), y.sum(0)


BASE = torch.arange(64 * 65, dtype=torch.float32).remainder(17).sub(8).view(64, 65)
ODD: dict[str, Callable[[Tensor], Tensor]] = {
    "a row further": lambda base: base[1:],
    "an element further": lambda base: base.view(-1)[1 : 1 + 4096].view(64, 64),
    "three elements further": lambda base: base.view(-1)[3 : 3 + 4096].view(64, 64),
    "columns": lambda base: base[:, 1:],
    "every second": lambda base: base[::2, 1::2],
    "transposed": lambda base: base[:, 1:].t(),
    "expanded rows": lambda base: base[5, 1:].expand(32, 64),
    "expanded columns": lambda base: base[1:, 7:8].expand(63, 32),
    "windows": lambda base: base.view(-1)[1:200].unfold(0, 64, 3),
    "no rows": lambda base: base[:0],
    "no columns": lambda base: base[:, 3:3],
    "one element": lambda base: base[3:4, 3:4],
}


@pytest.mark.parametrize("name", ODD)
def test_odd_layouts(name: str) -> None:
    agree(mixed, ODD[name](BASE.to(CUDA)), rtol=1e-5, atol=1e-5)


def test_one_program_for_all_offsets() -> None:
    """No assumption from the first argument's alignment."""
    fast = compiled(lambda x: torch.exp(x) + 1)
    memory = torch.randn(5000, device=CUDA)
    for offset in (0, 1, 4, 2, 3, 16, 0):
        x = memory[offset : offset + 4096]
        torch.testing.assert_close(fast(x), torch.exp(x) + 1)


def test_an_unaligned_argument_is_written_in_place() -> None:
    def double(x: Tensor) -> Tensor:
        x.mul_(2)
        return x[1:]

    memory, other = (torch.ones(4099, device=CUDA) for _ in range(2))
    fast = compiled(double)
    for count in (1, 2):
        part = fast(memory[1:4098])
        double(other[1:4098])
        assert torch.equal(memory, other) and part.data_ptr() == memory[2:].data_ptr()
        assert memory[1:4098]._version == count


@torch.library.custom_op("kiln_tests::behind_one", mutates_args=())
def behind_one(x: Tensor) -> Tensor:
    """Its result starts four bytes after a multiple of sixteen."""
    return torch.nn.functional.pad(x, (1, 0))[1:]


@behind_one.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_an_operator_whose_result_is_not_aligned() -> None:
    agree(lambda x: behind_one(x * 2) + 1, torch.randn(4096, device=CUDA))


@pytest.mark.parametrize("dtype", [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
], ids=str)  # fmt: skip
def test_dtypes(dtype: torch.dtype) -> None:
    drawn = torch.randint(0, 2 if dtype == torch.bool else 100, (130, 67), device=CUDA)
    x = (drawn / 8 if dtype.is_floating_point else drawn).to(dtype)

    def program(x: Tensor) -> tuple[Tensor, ...]:
        y = x + x if dtype == torch.bool else x * 3 + 1
        numbers = x.to(torch.uint8)
        return y, torch.where(x > 1, y, x), x.sum(-1), x.amax(0), y.float(), numbers, numbers.argmax(-1)

    agree(program, x, rtol=2e-2 if dtype.itemsize == 2 and dtype.is_floating_point else 1e-5, atol=1e-5)


def test_no_dimensions() -> None:
    agree(lambda x, y: (x * 2 + y, torch.stack([x, x * y]).sum()), torch.tensor(3.0, device=CUDA), torch.tensor(4.0))


def test_large_numbers_made_of_small_indices() -> None:
    agree(lambda x: x + torch.arange(0, 10**11, 10**8, device=CUDA), torch.ones(1000, dtype=torch.int64, device=CUDA))


def test_more_elements_than_32_bits_count() -> None:
    if torch.cuda.mem_get_info()[0] < 12 * GIB:
        pytest.skip("needs 12 GiB")
    count = (1 << 31) + 1000
    x = torch.ones(count, dtype=torch.int8, device=CUDA)
    x[-1], x[1 << 31] = 5, 7
    y = compiled(lambda x: x * 2 + 1)(x)
    assert y[-1] == 11 and y[1 << 31] == 15 and y[0] == 3
    y -= 3
    assert y.count_nonzero() == 2
    rows = x.view(-1, 1 << 3)
    assert compiled(lambda x: x.sum(-1, dtype=torch.int32).amax())(rows) == 14


def test_autocast_is_part_of_the_program() -> None:
    x, weight = torch.randn(64, 64, device=CUDA), torch.randn(64, 64, device=CUDA)

    def program(x: Tensor) -> Tensor:
        return torch.softmax(x @ weight, -1) @ weight

    fast = compiled(program)
    for dtype in (None, torch.bfloat16, torch.float16, None):
        with torch.autocast("cuda", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            expected, got = program(x), fast(x)
        torch.testing.assert_close(got, expected, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_another_stream_in_each_call(mode: str) -> None:
    fast = compiled(lambda x: torch.sin(x) * 2, mode=mode)
    x = torch.randn(1 << 20, device=CUDA)
    expected = torch.sin(x) * 2
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(3)]
    for number in range(9):
        with torch.cuda.stream(streams[number % 3]):
            mine = x + 0  # made on this stream: read too early, it would be wrong
            assert torch.equal(fast(mine), expected), number


def test_memory_that_another_stream_still_reads() -> None:
    """`record_stream` works for results as in eager."""
    fast = compiled(lambda x: x * 2)
    side = torch.cuda.Stream()
    x = torch.full((1 << 20,), 1.0, device=CUDA)
    fast(x)
    y = fast(x)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        later = y.clone()
        y.record_stream(side)
    del y
    others = [fast(x + n) for n in range(4)]
    side.synchronize()
    assert torch.equal(later, x * 2) and len(others) == 4


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_dlpack(mode: str) -> None:
    fast = compiled(lambda x: x * 2, mode=mode)
    memory = torch.arange(1025.0, device=CUDA)
    held = []
    for number in range(5):
        given = torch.from_dlpack((memory + number)[1:])
        held.append((torch.from_dlpack(fast(given)), (memory[1:] + number) * 2))
    for got, expected in held:
        assert torch.equal(got, expected)


def test_inference_tensors() -> None:
    fast = compiled(mixed)
    with torch.inference_mode():
        x = torch.randn(64, 64, device=CUDA)
        torch.testing.assert_close(fast(x), mixed(x))
    x = torch.randn(64, 64, device=CUDA)
    torch.testing.assert_close(fast(x), mixed(x))


def test_arguments_on_the_cpu_are_moved() -> None:
    agree(lambda x: (x.to("cuda:0") * 2 + 1, x + 1), torch.randn(100))
    agree(lambda x: (x * 2).cpu() + 1, torch.randn(100, device=CUDA))
    with pytest.raises(RuntimeError, match="device"):
        kiln.compile(lambda x, y: x * y)(torch.randn(8), torch.randn(8, device=CUDA))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_out_of_memory_inside_a_plan(mode: str) -> None:
    """The error is eager's, all memory comes back, the next call runs."""

    def program(x: Tensor, weight: Tensor) -> Tensor:
        y = torch.sin(x) @ weight
        return (torch.cos(y)[:, None] * y[None, :]).sort(-1).values.sum()

    fast = compiled(program, mode=mode, dynamic=True)
    weight = torch.randn(64, 64, device=CUDA)
    small = torch.randn(16, 64, device=CUDA)
    for _ in range(3):
        torch.testing.assert_close(fast(small, weight), program(small, weight), rtol=1e-3, atol=1e-3)
    rows = int((torch.cuda.get_device_properties(0).total_memory // 256) ** 0.5) * 2
    large = torch.randn(rows, 64, device=CUDA)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            fast(large, weight)
        gc.collect()
        assert torch.cuda.memory_allocated() <= before + (1 << 20)
        torch.cuda.empty_cache()
    torch.testing.assert_close(fast(small, weight), program(small, weight), rtol=1e-3, atol=1e-3)


def everything() -> list[Tensor]:
    """All free memory, including torch's cache, except blocks of less than 1 MiB."""
    held, size = [], 1 << 37
    while size >= 1 << 20:
        try:
            held.append(torch.empty(size, dtype=torch.uint8, device=CUDA))
        except torch.OutOfMemoryError:
            size //= 2
    return held


def test_out_of_memory_in_a_backward() -> None:
    """Nothing that the forward saved stays behind; the next backward runs."""
    fast = compiled(lambda x: torch.tanh(x).sort(-1).values.square().sum())
    x = torch.randn(1 << 24, device=CUDA, requires_grad=True)
    (expected,) = torch.autograd.grad(fast(x), x)
    torch.cuda.synchronize()
    gc.collect()
    before = torch.cuda.memory_allocated()
    loss = fast(x)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    filler = everything()
    with pytest.raises(torch.OutOfMemoryError):
        torch.autograd.grad(loss, x, retain_graph=True)
    del loss, filler
    gc.collect()
    assert torch.cuda.memory_allocated() <= before + 4096
    assert torch.equal(torch.autograd.grad(fast(x), x)[0], expected)
    torch.cuda.empty_cache()  # CUDA loads kernels at their first use, into memory that torch's cache would keep


def test_sums_have_one_order_if_asked_to() -> None:
    """Under `use_deterministic_algorithms` there are no atomic additions."""
    table, rows = torch.zeros(7, 64, device=CUDA), torch.randn(1 << 15, 64, device=CUDA)
    at = torch.randint(0, 7, (1 << 15,), device=CUDA)
    fast = compiled(lambda table, at, rows: torch.index_put(table, (at,), torch.exp(rows), accumulate=True))
    fast(table, at, rows)
    torch.use_deterministic_algorithms(True)
    try:
        results = [fast(table, at, rows) for _ in range(5)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(result, results[0]) for result in results)
    expected = torch.index_put(table.double(), (at,), torch.exp(rows).double(), accumulate=True)
    torch.testing.assert_close(results[0].double(), expected, rtol=1e-4, atol=1e-4)


def test_factors_of_rank_0_are_rounded_as_in_eager() -> None:
    """A product takes the value of a tensor on the CPU, and reads one on the GPU in 16 bits."""

    def program(x: torch.Tensor, near: torch.Tensor, far: torch.Tensor) -> list[torch.Tensor]:
        return [x * far, far * x, x * near, near * x, x / near]

    near, far = torch.tensor(0.1, device="cuda"), torch.tensor(0.1)
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.linspace(-4, 4, 1001, device="cuda").to(dtype)
        compiled = kiln.compile(program, options={"numerics": "rounded"})
        for result, expected in zip(compiled(x, near, far), program(x, near, far), strict=True):
            assert torch.equal(result, expected)


def test_compiling_draws_no_random_number() -> None:
    """An operator that makes a tensor is tried out with no tensor that would name the device."""

    def shuffled(x: Tensor) -> Tensor:
        return x[torch.randperm(x.shape[0], device=CUDA)]

    x = torch.arange(23, device=CUDA)
    torch.manual_seed(3)
    expected = [shuffled(x), shuffled(x)]
    torch.manual_seed(3)
    function = compiled(shuffled, options={"random": "eager", "cache": False})
    assert [function(x).tolist(), function(x).tolist()] == [each.tolist() for each in expected]
