"""Each pass by text, checked by the interpreter; the list of passes as a whole."""

from __future__ import annotations

import pytest
import torch

from kiln.graph.passes import GRAPH_PASSES, run_passes
from kiln.graph.passes.add_embedding import AddEmbedding
from kiln.graph.passes.constant_fold import ConstantFold
from kiln.graph.passes.cse import Cse, exact
from kiln.graph.passes.dead_code import DeadCode
from kiln.graph.passes.pool_slices import PoolSlices
from kiln.graph.passes.separate_outputs import SeparateOutputs
from kiln.graph.passes.unfuse_bias import UnfuseBias
from kiln.support.events import EventSink
from kiln.support.passes import before, check_order
from tests.graph.passes.graphs import check_pass, check_unchanged, parsed, same_values


def test_cse_sees_through_commuted_inputs() -> None:
    check_pass(
        Cse(),
        """
        graph(%0: f32[4] "x", %1: f32[4] "y"):
            %2: f32[4] = add(%0, %1)
            %3: f32[4] = add(%1, %0)
            %4: f32[4] = sub(%0, %1)
            %5: f32[4] = sub(%1, %0)
            %6: f32[4] = mul(%2, %3)
            return %6, %4, %5
        """,
        """
        graph(%0: f32[4] "x", %1: f32[4] "y"):
            %2: f32[4] = add(%0, %1)
            %3: f32[4] = sub(%0, %1)
            %4: f32[4] = sub(%1, %0)
            %5: f32[4] = mul(%2, %2)
            return %5, %3, %4
        """,
    )


def test_cse_tells_numbers_apart() -> None:
    check_pass(
        Cse(),
        """
        graph():
            %0: f32[] = constant(value=0.0, dtype=f32, device=cpu)
            %1: f32[] = constant(value=-0.0, dtype=f32, device=cpu)
            %2: f32[] = constant(value=1.0, dtype=f32, device=cpu)
            %3: f32[] = constant(value=-0.0, dtype=f32, device=cpu)
            return %0, %1, %2, %3
        """,
        """
        graph():
            %0: f32[] = constant(value=0.0, dtype=f32, device=cpu)
            %1: f32[] = constant(value=-0.0, dtype=f32, device=cpu)
            %2: f32[] = constant(value=1.0, dtype=f32, device=cpu)
            return %0, %1, %2, %1
        """,
    )


def test_cse_leaves_random_values() -> None:
    check_unchanged(
        Cse(),
        """
        graph():
            %0: i64[] = random_seed(device=cpu)
            %1: i64[] = random_seed(device=cpu)
            %2: f32[4] = random(%0, distribution="uniform", params=(0.0, 1.0), sizes=(4,), dtype=f32, device=cpu)
            %3: f32[4] = random(%1, distribution="uniform", params=(0.0, 1.0), sizes=(4,), dtype=f32, device=cpu)
            return %2, %3
        """,
        """
        graph(%0: f32[4] "x"):
            %1: (f32[4], b8[4]) = aten.native_dropout.default(%0, 0.5, True)
            %2: (f32[4], b8[4]) = aten.native_dropout.default(%0, 0.5, True)
            return %1, %2
        """,
    )


def test_constants_fold_through_uniform_values() -> None:
    check_pass(
        ConstantFold(),
        """
        graph(%0: f32[2, 3] "x"):
            %1: i64[] = constant(value=4, dtype=i64, device=cpu)
            %2: i64[2, 3] = full(%1, sizes=(2, 3))
            %3: f32[2, 3] = convert(%2, dtype=f32)
            %4: f32[2, 3] = rsqrt(%3)
            %5: f32[2, 3] = mul(%0, %4)
            return %5
        """,
        """
        graph(%0: f32[2, 3] "x"):
            %1: f32[] = constant(value=0.5, dtype=f32, device=cpu)
            %2: f32[2, 3] = full(%1, sizes=(2, 3))
            %3: f32[2, 3] = mul(%0, %2)
            return %3
        """,
    )


def test_iotas_absorb_integers() -> None:
    check_pass(
        ConstantFold(),
        """
        graph():
            %0: i64[5] = iota(length=5, start=0, step=1, dtype=i64, device=cpu)
            %1: i64[] = constant(value=3, dtype=i64, device=cpu)
            %2: i64[5] = mul(%1, %0)
            %3: i64[5] = add(%2, %1)
            %4: f32[5] = convert(%3, dtype=f32)
            return %4
        """,
        """
        graph():
            %0: f32[5] = iota(length=5, start=3, step=3, dtype=f32, device=cpu)
            return %0
        """,
    )


def test_division_by_zero_is_left_to_run_time() -> None:
    check_unchanged(
        ConstantFold(),
        """
        graph():
            %0: i64[] = constant(value=3, dtype=i64, device=cpu)
            %1: i64[] = constant(value=0, dtype=i64, device=cpu)
            %2: i64[] = floor_div(%0, %1)
            return %2
        """,
    )


def test_outputs_get_memory_of_their_own() -> None:
    check_pass(
        SeparateOutputs(),
        """
        graph(%0: f32[2, 3] "x"):
            %1: f32[2, 3] = neg(%0)
            %2: f32[3, 2 | 1, 3] = permute(%1, dims=(1, 0))
            return %0, %1, %2, %1 is output 1, %0 is input 0
        """,
        """
        graph(%0: f32[2, 3] "x"):
            %1: f32[2, 3] = neg(%0)
            %2: f32[3, 2 | 1, 3] = permute(%1, dims=(1, 0))
            %3: f32[2, 3] = clone(%0, strides=(3, 1))
            %4: f32[3, 2 | 1, 3] = clone(%2, strides=(1, 3))
            return %3, %1, %4, %1 is output 1, %0 is input 0
        """,
    )


def test_an_output_with_views_is_copied_with_its_memory() -> None:
    check_pass(
        SeparateOutputs(),
        """
        graph(%0: f32[4] "x"):
            %1: f32[4] = neg(%0)
            %2: f32[2 at 2] = slice(%1, axis=0, start=2, stop=4, step=1)
            %3: f32[2] = slice(%1, axis=0, start=0, stop=2, step=1)
            return %1, %2, %3 views output 1 as f32[2]
        """,
        """
        graph(%0: f32[4] "x"):
            %1: f32[4] = neg(%0)
            %2: f32[2] = slice(%1, axis=0, start=0, stop=2, step=1)
            %3: f32[4] = clone(%1, strides=(1,))
            %4: f32[2 at 2] = slice(%3, axis=0, start=2, stop=4, step=1)
            return %1, %4, %2 views output 1 as f32[2]
        """,
    )


def test_bias_is_added_by_the_op_that_follows() -> None:
    check_pass(
        UnfuseBias(),
        """
        graph(%0: f32[2, 3] "x", %1: f32[3, 4] "w", %2: f32[4] "b"):
            %3: f32[2, 4] = aten.addmm.default(%2, %0, %1)
            %4: f32[2, 4] = tanh(%3)
            return %4
        """,
        """
        graph(%0: f32[2, 3] "x", %1: f32[3, 4] "w", %2: f32[4] "b"):
            %3: f32[2, 4] = aten.mm.default(%0, %1)
            %4: f32[2, 4] = add(%3, %2)
            %5: f32[2, 4] = tanh(%4)
            return %5
        """,
    )


def test_bias_is_added_behind_a_view() -> None:
    check_pass(
        UnfuseBias(),
        """
        graph(%0: f32[2, 3] "x", %1: f32[3, 4] "w", %2: f32[4] "b"):
            %3: f32[2, 4] = aten.addmm.default(%2, %0, %1)
            %4: f32[1, 2, 4] = view(%3, sizes=(1, 2, 4))
            %5: f32[1, 2, 4] = tanh(%4)
            return %5
        """,
        """
        graph(%0: f32[2, 3] "x", %1: f32[3, 4] "w", %2: f32[4] "b"):
            %3: f32[2, 4] = aten.mm.default(%0, %1)
            %4: f32[2, 4] = add(%3, %2)
            %5: f32[1, 2, 4] = view(%4, sizes=(1, 2, 4))
            %6: f32[1, 2, 4] = tanh(%5)
            return %6
        """,
    )


def test_bias_stays_where_nothing_can_add_it() -> None:
    """The product is an output, directly or as a view, or a view of it is."""
    check_unchanged(
        UnfuseBias(),
        """
        graph(%0: f32[2, 3] "x", %1: f32[3, 4] "w", %2: f32[4] "b"):
            %3: f32[2, 4] = aten.addmm.default(%2, %0, %1)
            %4: f32[8] = view(%3, sizes=(8,))
            return %4
        """,
        """
        graph(%0: f32[2, 3] "x", %1: f32[3, 4] "w", %2: f32[4] "b"):
            %3: f32[2, 4] = aten.addmm.default(%2, %0, %1)
            %4: f32[8] = view(%3, sizes=(8,))
            %5: f32[8] = tanh(%4)
            return %4, %5
        """,
        """
        graph(%0: f32[2, 3] "x", %1: f32[3, 4] "w", %2: f32[4] "b"):
            %3: f32[2, 4] = aten.addmm.default(%2, %0, %1)
            %4: f32[2, 4] = tanh(%3)
            return %4, %3
        """,
    )


def test_the_list_runs_reports_and_keeps_values() -> None:
    events = EventSink()
    graph = parsed("""
        graph(%0: f32[2, 3] "x"):
            %1: f32[] = constant(value=1.0, dtype=f32, device=cpu)
            %2: f32[2, 3] = mul(%0, %1)
            %3: f32[2, 3] = neg(%2)
            %4: f32[2, 3] = neg(%3)
            %5: f32[2, 3] = neg(%0)
            return %4, %3, %5
    """)
    changed = run_passes(graph, events, checks="full")
    same_values(graph, changed)
    assert [node.op.name for node in changed] == ["neg", "clone", "clone"]
    assert [event.data["name"] for event in events.events if event.kind == "pass"] == [p.name for p in GRAPH_PASSES]


def test_unused_effects_stay() -> None:
    graph = parsed("""
        graph(%0: b8[] "c"):
            %1: () = assert(%0, message="no")
            return
    """)
    assert run_passes(graph, EventSink()).nodes == graph.nodes


def test_order_is_checked() -> None:
    with pytest.raises(ValueError, match="'cse' must stand before 'dead-code': why not"):
        check_order((DeadCode(), Cse()), before("cse", "dead-code", because="why not"))


def test_outputs_keep_even_the_strides_of_dimensions_of_size_one() -> None:
    """Passes ignore strides of size-1 dimensions; the caller still sees eager's."""
    graph = parsed("""
        graph(%0: f32[4, 3, 1, 1] "x"):
            %1: f32[4, 3, 1, 1 | 3, 1, 3, 3] = clone(%0, strides=(3, 1, 3, 3))
            %2: f32[4, 3, 1, 1 | 3, 1, 3, 3] = exp(%1)
            %3: f32[4, 3, 1, 1] = clone(%2, strides=(3, 1, 1, 1))
            return %3
    """)
    made = run_passes(graph, EventSink(), checks="full")
    assert made.outputs[0].value.tensor.strides == (3, 1, 1, 1)
    assert [node.op.name for node in made.nodes] == ["exp", "as_strided"]


EMBEDDING = """
    graph(%0: f32[12, 4] "x", %1: i64[2, 5] "at", %2: f32[2, 5, 4] "rows"):
        %3: f32[12, 4] = mul(%0, %0)
        %4: i64[2, 5] = clone(%1, strides=(5, 1))
        %5: f32[12, 4] = aten.embedding_dense_backward.default(%2, %4, 12, 3, False)
        %6: f32[12, 4] = add(%5, %3)
        return %6
"""


def test_rows_of_an_embedding_are_added_to_the_other_gradient() -> None:
    """The index contains the padding row 3; a table with another reader stays."""
    check_pass(
        AddEmbedding(),
        EMBEDDING,
        """
        graph(%0: f32[12, 4] "x", %1: i64[2, 5] "at", %2: f32[2, 5, 4] "rows"):
            %3: f32[12, 4] = mul(%0, %0)
            %4: i64[2, 5] = clone(%1, strides=(5, 1))
            %5: i64[] = constant(value=3, dtype=i64, device=cpu)
            %6: b8[2, 5] = ne(%4, %5)
            %7: f32[] = constant(value=0.0, dtype=f32, device=cpu)
            %8: b8[2, 5, 1] = unsqueeze(%6, axis=2)
            %9: f32[2, 5, 4] = where(%8, %2, %7)
            %10: f32[12, 4] = index_put(%3, %4, %9, axes=(0,), accumulate=True)
            return %10
        """,
        inputs=[torch.randn(12, 4), torch.randint(0, 12, (2, 5)), torch.randn(2, 5, 4)],
    )
    ends = ("return %6, %5", "return %6, %3, %5")
    check_unchanged(AddEmbedding(), *[EMBEDDING.replace("return %6", end) for end in ends])


POOL = """
    graph(%0: f32[2, 3, 8] "x"):
        %1: (f32[2, 3, 5], i64[2, 3, 5]) = aten.max_pool2d_with_indices.default(%0, (1, 2), (1, 2), (0, 1))
        %2: f32[2, 3, 5] = item(%1, index=0)
        %3: i64[2, 3, 5] = item(%1, index=1)
        return %2, %3
"""
AVERAGE = """
    graph(%0: bf16[2, 4, 8] "x"):
        %1: bf16[2, 2, 8] = aten.avg_pool2d.default(%0, (2, 1))
        return %1
"""


def test_maxima_of_windows_are_taken_from_slices() -> None:
    """The index is that of the first place inside the image unless a later one is larger, or NaN."""
    image = torch.randn(2, 3, 8).round()
    image[0, 0, 3], image[1, 1] = float("nan"), float("-inf")
    check_pass(
        PoolSlices(),
        POOL,
        """
        graph(%0: f32[2, 3, 8] "x"):
            %1: i32[] = constant(value=0, dtype=i32, device=cpu)
            %2: i32[3] = iota(length=3, start=0, step=8, dtype=i32, device=cpu)
            %3: i32[3, 1] = unsqueeze(%2, axis=1)
            %4: i32[5] = iota(length=5, start=-1, step=2, dtype=i32, device=cpu)
            %5: i32[3, 5] = add(%3, %4)
            %6: i32[5] = neg(%4)
            %7: i32[5] = maximum(%6, %1)
            %8: i32[5] = add(%1, %7)
            %9: f32[] = constant(value=-inf, dtype=f32, device=cpu)
            %10: f32[2, 3, 10] = pad(%0, %9, low=(0, 0, 1), high=(0, 0, 1))
            %11: f32[2, 3, 5 | 30, 10, 2] = slice(%10, axis=2, start=0, stop=9, step=2)
            %12: f32[2, 3, 5] = clone(%11, strides=(15, 5, 1))
            %13: f32[2, 3, 5 | 30, 10, 2 at 1] = slice(%10, axis=2, start=1, stop=10, step=2)
            %14: f32[2, 3, 5] = clone(%13, strides=(15, 5, 1))
            %15: b8[2, 3, 5] = gt(%14, %12)
            %16: b8[2, 3, 5] = ne(%14, %14)
            %17: b8[2, 3, 5] = bitwise_or(%15, %16)
            %18: i32[] = constant(value=1, dtype=i32, device=cpu)
            %19: i32[2, 3, 5] = where(%17, %18, %8)
            %20: f32[2, 3, 5] = where(%17, %14, %12)
            %21: i32[2, 3, 5] = add(%5, %19)
            %22: i64[2, 3, 5] = convert(%21, dtype=i64)
            return %20, %22
        """,
        inputs=[image],
        tolerance=0,
    )


def test_averages_of_windows_are_sums_of_slices() -> None:
    check_pass(
        PoolSlices(),
        AVERAGE,
        """
        graph(%0: bf16[2, 4, 8] "x"):
            %1: bf16[2, 2, 8 | 32, 16, 1] = slice(%0, axis=1, start=0, stop=3, step=2)
            %2: bf16[2, 2, 8] = clone(%1, strides=(16, 8, 1))
            %3: f32[2, 2, 8] = convert(%2, dtype=f32)
            %4: bf16[2, 2, 8 | 32, 16, 1 at 8] = slice(%0, axis=1, start=1, stop=4, step=2)
            %5: bf16[2, 2, 8] = clone(%4, strides=(16, 8, 1))
            %6: f32[2, 2, 8] = convert(%5, dtype=f32)
            %7: f32[2, 2, 8] = add(%3, %6)
            %8: f32[] = constant(value=2.0, dtype=f32, device=cpu)
            %9: f32[2, 2, 8] = div(%7, %8)
            %10: bf16[2, 2, 8] = convert(%9, dtype=bf16)
            return %10
        """,
        tolerance=0,
    )


def test_other_pools_stay_calls() -> None:
    """Averages that count the elements inside the image, or beyond its border, and large windows."""
    check_unchanged(
        PoolSlices(),
        AVERAGE.replace("2, 2, 8]", "2, 3, 8]").replace("(2, 1))", "(2, 1), (2, 1), (1, 0), False, False)"),
        AVERAGE.replace("2, 2, 8]", "2, 3, 8]").replace("4, 8]", "5, 8]").replace("(2, 1))", "(2, 1), (), (0,), True)"),
        AVERAGE.replace("4, 8]", "56, 8]").replace("(2, 1))", "(28, 1))"),
    )


def test_complex_numbers_are_told_apart_by_their_bits() -> None:
    numbers = (complex(0.0, 0.0), complex(0.0, -0.0), complex(-0.0, 0.0), 0.0, 0, False, 1, 1.0, True, complex(1.0))
    keys = [exact(number) for number in numbers]
    assert all(a != b for place, a in enumerate(keys) for b in keys[:place])
    assert exact((1, complex(0.0, -0.0))) == exact((1, complex(0.0, -0.0)))


@pytest.mark.parametrize(("start", "length"), [(0, 1 << 25), (1 << 24, 2), (-(1 << 24), 2)])
def test_an_iota_that_leaves_the_exact_integers_is_converted_at_run_time(start: int, length: int) -> None:
    check_unchanged(
        ConstantFold(),
        f"""
        graph():
            %0: i64[{length}] = iota(length={length}, start={start}, step=1, dtype=i64, device=cpu)
            %1: f32[{length}] = convert(%0, dtype=f32)
            return %1
        """,
    )


@pytest.mark.parametrize("size", ["s0", "0"])
def test_the_largest_of_perhaps_no_equal_values_is_no_constant(size: str) -> None:
    check_unchanged(
        ConstantFold(),
        f"""
        graph(%0: f32[s0] "x"):
            %1: f32[] = constant(value=2.0, dtype=f32, device=cpu)
            %2: f32[3, {size}] = full(%1, sizes=(3, {size}))
            %3: f32[3] = amax(%2, axes=(1,))
            return %3
        """,
    )
