"""How block sizes, warps and pipeline stages are chosen."""

from __future__ import annotations

import re

import pytest
import torch

from kiln.loops.codegen.print_kernel import print_kernel
from kiln.loops.kernel.launches.program import KernelLaunch
from kiln.loops.kernel.passes import choose_tiles
from tests.codegen_triton.check import GPU, Runner, assert_same_values, check_kernel
from tests.codegen_triton.test_compile import ptx_of
from tests.loop_ir.parse import parse_kernel


def stages(source: str) -> list[int]:
    return [int(found) for found in re.findall(r"num_stages=(\d)", source)]


def long_sum(dtype: str) -> str:
    """Rows read in blocks of 8192, with one result per row."""
    kernel = parse_kernel(f"""
        kernel sums(x: {dtype}[64, 65536], r: {dtype}[64] -> out: {dtype}[64]) units (i0: 64)
            local total: {dtype}
            phase (i1: 65536):
                total[] = sum over (i1): mul(load x[i0, i1], load r[i0])
            phase ():
                out[i0] = load total[]
    """)
    return print_kernel(kernel, GPU).kernel.source


def test_three_turns_are_loaded_ahead() -> None:
    """Three blocks of 32 KiB fill a program's share of shared memory; only loads of the loop count."""
    assert stages(long_sum("f32")) == stages(long_sum("f64")) == [3]


def halves(dtype: str) -> str:
    """A long loop that reads one buffer at two places."""
    kernel = parse_kernel(f"""
        kernel halves(x: {dtype}[64, 131072] -> out: {dtype}[64]) units (i0: 64)
            local total: {dtype}
            phase (i1: 65536):
                total[] = sum over (i1): mul(load x[i0, i1], load x[i0, i1 + 65536])
            phase ():
                out[i0] = load total[]
    """)
    return print_kernel(kernel, GPU).kernel.source


def test_each_place_of_a_buffer_takes_shared_memory() -> None:
    """Triton keeps a block of each load: two places of one buffer as much as two buffers."""
    for dtype, elements in (("f32", 4096), ("i64", 2048)):
        source = halves(dtype)
        assert stages(source) == [3] and f"RBLOCK {elements} looped" in source


def rows_in_place(read: str) -> str:
    """Rows that are summed and overwritten; `read`: where the second loop reads them."""
    return f"""
        kernel rows( -> io: f32[64, 65536]) units (i0: 64)
            local total: f32
            phase (i1: 65536):
                total[] = sum over (i1): load io[i0, i1]
            phase (i1: 65536):
                io[i0, i1] = mul(load {read}, load total[])
    """


def test_loads_overtake_stores_only_of_their_own_turn() -> None:
    own = print_kernel(parse_kernel(rows_in_place("io[i0, i1]")), GPU).kernel.source
    other = print_kernel(parse_kernel(rows_in_place("io[i0, 65535 - i1]")), GPU).kernel.source
    assert stages(own) == [3, 3] and stages(other) == []


def norm_gradient(rows: str, count: int) -> str:
    """Gradient of a norm over blocks of rows; the last block may have fewer."""
    inputs = ", ".join(f"{name}: {dtype}[{count}, 768]" for name, dtype in (("x", "f32"), ("g", "bf16"), ("r", "f32")))
    return f"""
        kernel gradient({inputs} -> dx: f32[{count}, 768], dw: f32[4, 768]) units (i0: 4)
            local inner(i1: {rows}): f32
            local column(i2: 768): f32
            phase (i1: {rows}, i2: 768):
                v0 = mul(load x[64*i0 + i1, i2], convert(load g[64*i0 + i1, i2], f32))
                inner[i1] = sum over (i2): v0
                column[i2] = sum over (i1): v0
            phase (i1: {rows}, i2: 768):
                dx[64*i0 + i1, i2] = add(load r[64*i0 + i1, i2], mul(load x[64*i0 + i1, i2], load inner[i1]))
            phase (i2: 768):
                dw[i0, i2] = load column[i2]
    """


def test_a_last_block_with_fewer_rows_changes_no_choice() -> None:
    """Two rows of 768 at a time: three stages of 10 bytes per element fit, with four warps."""
    for text in (norm_gradient("64", 256), norm_gradient("min(64, 250 - 64*i0)", 250)):
        written = print_kernel(parse_kernel(text), GPU).kernel
        assert dict(written.meta)["num_warps"] == 4
        assert dict(dict(written.meta)["constants"])["RBLOCK0"] == 2
        assert stages(written.source) == [3]


@pytest.mark.parametrize(("function", "each"), [("abs", 16), ("exp", 8), ("sin", 2)])
def test_elements_of_a_thread_are_fewer_where_their_code_is_long(function: str, each: int) -> None:
    """It is repeated for each, and sixteen copies of a sine take a third of a second to compile."""
    lines = [f"v{n} = {function}({f'v{n - 1}' if n else 'load x[i0]'})" for n in range(16)]
    kernel = parse_kernel(
        "kernel many(x: f32[1048576 @cuda:0] -> out: f32[1048576 @cuda:0]) units (i0: 1048576)\n    phase ():\n"
        + "".join(f"        {line}\n" for line in [*lines, "out[i0] = v15"])
    )
    tiling = choose_tiles.choose_tiles(kernel, GPU)
    assert [dim.block for dim in tiling.dims] == [128 * each]


def test_fewer_warps_read_more_each() -> None:
    """If a row is read once and nothing is written, a thread has 128 bytes in flight; else 64."""

    def warps(dtype: str) -> int:
        kernel = parse_kernel(f"""
            kernel top(x: {dtype}[512, 4096] -> out: {dtype}[512]) units (i0: 512)
                local top: {dtype}
                phase (i1: 4096):
                    top[] = amax over (i1): load x[i0, i1]
                phase ():
                    out[i0] = load top[]
        """)
        return dict(print_kernel(kernel, GPU).kernel.meta)["num_warps"]

    assert warps("bf16") == 2 and warps("f32") == 4


WIDE = {
    "a number": """
        kernel k( -> out: i64[1024]) units (i0: 1024)
            phase ():
                out[i0] = index(100000000*i0 - 7, i64)
    """,
    "a negative number": """
        kernel k( -> out: i64[1024]) units (i0: 1024)
            phase ():
                out[i0] = index(-100000000*i0, i64)
    """,
    "a test": """
        kernel k( -> out: i64[1024]) units (i0: 1024)
            phase ():
                out[i0] = where(test(100000000*i0 <= 3333333*i0*i0), i64(1), i64(2))
    """,
    "an index of parts": """
        kernel k(x: i64[1024] -> out: i64[1024]) units (i0: 1024)
            phase ():
                out[i0] = load x[(100000000*i0 + 5)//1000003 % 1021]
    """,
}


@pytest.mark.parametrize("name", WIDE)
def test_numbers_made_of_indices_may_be_large(name: str, runner: Runner) -> None:
    """Although every tensor is small."""
    tensors = {"x": torch.arange(1024), "out": torch.zeros(1024, dtype=torch.int64)}
    text = WIDE[name]
    check_kernel(runner, text, {key: tensor for key, tensor in tensors.items() if f"{key}:" in text}, {})


def test_small_numbers_have_32_bits() -> None:
    kernel = parse_kernel("""
        kernel k(x: i64[1024] -> out: i64[1024]) units (i0: 1024)
            phase ():
                out[i0] = add(load x[i0], index(2000000*i0, i64))
    """)
    assert "tl.arange(0, XBLOCK).to" not in print_kernel(kernel, GPU).kernel.source


ODD = """
    loops odd
        x: f32[3, 777] = input 0
        total: f32[3] = reduction sum over (i1: 777) keeping (i0: 3): load x[i0, i1]
        top: i64[3] = reduction argmax over (i1: 777) keeping (i0: 3): load x[i0, i1]
        run: f32[3, 777] = scan sum along i1 of (i0: 3, i1: 777): load x[i0, i1]
        return total, top, run
"""


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With registers for 256 elements."""
    for name in ("LARGEST_BLOCK", "WHOLE_BLOCK", "LOOP_BLOCK"):
        monkeypatch.setattr(choose_tiles, name, 256)


@pytest.mark.usefixtures("small_blocks")
def test_the_last_turn_alone_has_a_mask(runner: Runner) -> None:
    made = assert_same_values(runner, ODD, tolerance=1e-3)
    text = "".join(
        print_kernel(step.kernel, GPU).kernel.source for step in made.steps if isinstance(step, KernelLaunch)
    )
    loops = re.findall(r"tl.range\(0, (\d+), RBLOCK.*\n +i1 = .*\n +has_i1 = (.*)\n", text)
    assert len(loops) == 2
    assert {(full, mask) for full, mask in loops} == {("768", "tl.full([RBLOCK], True, tl.int1)")}
    assert text.count("has_i1 = i1 < 777") == len(loops)


def test_rows_of_odd_length_are_read_16_bytes_at_a_time() -> None:
    """Rows that start at multiples of 16 bytes; only the last block is read by element."""
    kernel = parse_kernel("""
        kernel sums(x: bf16[64, 50257 | 50264, 1] -> out: f32[64]) units (i0: 64)
            local total: f32
            phase (i1: 50257):
                total[] = sum over (i1): convert(load x[i0, i1], f32)
            phase ():
                out[i0] = load total[]
    """)
    ptx = ptx_of(print_kernel(kernel, GPU, (True, True)))
    assert "cp.async.cg.shared.global" in ptx or "ld.global.v4" in ptx


@pytest.mark.parametrize("op", ["sum", "prod", "amax"])
def test_rows_without_elements(op: str, runner: Runner) -> None:
    """A block has at least one element, which is outside of an empty row."""
    text = f"""
        kernel k(x: f32[4, 0], y: f32[4] -> out: f32[4]) units (i0: 4)
            local total: f32
            phase (i1: 0):
                total[] = {op} over (i1): load x[i0, i1]
            phase ():
                out[i0] = mul(load total[], load y[i0])
    """
    tensors = {"x": torch.empty(4, 0), "y": torch.ones(4), "out": torch.zeros(4)}
    check_kernel(runner, text, tensors, {})


ODD_COLUMNS = """
    kernel k(x: bf16[512, {0} | {1}, 1] -> y: bf16[512, {0} | {1}, 1], out: f32[{0}]) units (i0: {0})
        local total: f32
        phase (i1: 512):
            v0 = mul(load x[i1, i0], bf16(2.0))
            y[i1, i0] = v0
            total[] = sum over (i1): convert(v0, f32)
        phase ():
            out[i0] = load total[]
"""


def test_all_blocks_of_columns_but_the_last_have_no_mask() -> None:
    """A mask that ends at 30522 would limit accesses to two elements."""
    source = print_kernel(parse_kernel(ODD_COLUMNS.format(30522, 30528)), GPU).kernel.source
    assert "if tl.program_id(0) < 476:" in source
    even = print_kernel(parse_kernel(ODD_COLUMNS.format(30520, 30520)), GPU).kernel.source
    assert "if " not in even and "has_i0" in even


def test_odd_columns_have_the_same_values(runner: Runner) -> None:
    tensors = {
        "x": torch.randint(-8, 8, (512, 131)).bfloat16(),
        "y": torch.zeros(512, 131).bfloat16(),
        "out": torch.zeros(131),
    }
    check_kernel(runner, ODD_COLUMNS.format(131, 131), tensors, {})
    assert "if tl.program_id" in runner.used[-1].kernel.source


def test_a_row_of_the_largest_block_is_read_once() -> None:
    text = """
        kernel rows(x: f32[64, {0}] -> out: f32[64, {0}]) units (i0: 64)
            local total: f32
            phase (i1: {0}):
                total[] = sum over (i1): load x[i0, i1]
            phase (i1: {0}):
                out[i0, i1] = mul(load x[i0, i1], load total[])
    """
    kept, longer = (
        print_kernel(parse_kernel(text.format(size)), GPU).kernel.source
        for size in (choose_tiles.LARGEST_BLOCK, 2 * choose_tiles.LARGEST_BLOCK)
    )
    assert "for " not in kept and "for " in longer


def test_what_a_mask_leaves_out_of_a_row_is_zero() -> None:
    text = """
        kernel rows(x: f32[64, 512] -> out: f32[64, 512]) units (i0: 64)
            local row(i1: 512): f32
            phase (i1: 512):
                row[i1] = exp(load x[i0, i1])
            phase (i1: 512):
                out[i0, i1] = load row[i1] if test(i1 < 20)
    """
    source = print_kernel(parse_kernel(text), GPU).kernel.source
    assert re.search(r"tl\.where\(\w+, \w+, 0\.0\)", source)
