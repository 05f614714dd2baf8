"""Joint graphs and partitions of small programs, run by the interpreter and compared with eager."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kiln.graph.autograd import JointGraph, partition
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.parse import parse_graph
from kiln.graph.ir.text import graph_text
from kiln.graph.ir.verify import verify
from kiln.graph.passes import JOINT_PASSES
from kiln.plan.plan import SymbolBinding
from kiln.plan.signature import Carried
from tests.graph.autograd.programs import check, joint_of, simplified


def grad(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, requires_grad=True)


def product(c: Any, x: Any, w: Any) -> Any:
    return c(torch.mul, x, w)


def mlp(c: Any, x: Any, w: Any, v: Any) -> Any:
    hidden = c(torch.sin, c(torch.matmul, x, w))
    return c(torch.matmul, c(torch.mul, hidden, hidden), v)


def softmax(c: Any, x: Any) -> Any:
    top = c("exp", x)
    return c(torch.div, top, c("sum", top, 1, True))


def two_results(c: Any, x: Any, y: Any) -> Any:
    z = c(torch.mul, x, y)
    return z, c("view", z, -1), c(torch.exp, x), c("t", x)


def gradient_is_tangent(c: Any, x: Any, y: Any) -> Any:
    return c(torch.add, x, y)


def updates_input(c: Any, x: Any, b: Any) -> Any:
    y = c(torch.sin, x)
    c("add_", b, y)
    return c(torch.mul, y, b)


def saves_what_it_overwrites(c: Any, x: Any, b: Any) -> Any:
    y = c(torch.mul, x, c("clone", b))
    c("mul_", b, 2.0)
    return y


def overwrites_non_leaf(c: Any, x: Any) -> Any:
    c("mul_", x, 3.0)
    return c(torch.sin, x)


CASES = {
    "product": (product, lambda: (grad(3, 4), grad(4))),
    "one_side": (product, lambda: (torch.randn(3, 4), grad(3, 1))),
    "mlp": (mlp, lambda: (torch.randn(5, 4), grad(4, 6), grad(6, 3))),
    "softmax": (softmax, lambda: (grad(3, 4),)),
    "two_results": (two_results, lambda: (grad(3, 4), grad(3, 4))),
    "gradient_is_tangent": (gradient_is_tangent, lambda: (grad(3, 4), grad(3, 4))),
    "broadcast_tangent": (gradient_is_tangent, lambda: (grad(3, 4), grad(4))),
    "updates_input": (updates_input, lambda: (grad(3, 4), torch.randn(3, 4))),
    "saves_what_it_overwrites": (saves_what_it_overwrites, lambda: (grad(3, 4), torch.randn(3, 4))),
    "overwrites_non_leaf": (overwrites_non_leaf, lambda: (grad(3, 4) * 2,)),
}


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("name", sorted(CASES))
def test_equals_eager(name: str, recompute: bool) -> None:
    program, make = CASES[name]
    check(program, make(), recompute)


def joint_text(text: str, forward_inputs: int, forward_outputs: int, grads: tuple[int | None, ...]) -> JointGraph:
    graph = parse_graph(text)
    verify(graph, "text")
    tangents = len(graph.inputs) - forward_inputs
    return JointGraph(graph, forward_inputs, forward_outputs, (), tuple(range(tangents)), grads)


def test_pointwise_chains_are_computed_again(golden: Any) -> None:
    parts = partition(joint_of(mlp, CASES["mlp"][1]()))
    golden(graph_text(parts.forward, origins=False) + "\n\n" + graph_text(parts.backward, origins=False))


def test_a_value_that_a_library_op_reads_twice_is_saved() -> None:
    joint = joint_of(mlp, CASES["mlp"][1]())
    parts = partition(joint)
    # The product of sines feeds matmuls of both directions, so it is kept; the sine itself is computed again.
    kept = [parts.forward.outputs[entry.index].value.op.name for entry in parts.saved if entry.of == "output"]
    assert kept == ["aten", "mul"]


def test_drawing_again_costs_more_than_a_mask() -> None:
    joint = joint_text(
        """\
graph(%0: f32[1000] "x", %1: f32[1000] "tangent"):
    %9: i64[] = random_seed(device=cpu)
    %2: f32[1000] = random(%9, distribution="uniform", params=(0.0, 1.0), sizes=(1000,), dtype=f32, device=cpu)
    %3: f32[] = constant(value=0.5, dtype=f32, device=cpu)
    %4: b8[1000] = lt(%2, %3)
    %5: f32[1000] = convert(%4, dtype=f32)
    %6: f32[1000] = mul(%0, %5)
    %7: f32[1000] = mul(%1, %5)
    return %6 requires_grad, %7""", 1, 1, (1,),
    )  # fmt: skip
    parts = partition(joint)
    kept = [parts.forward.outputs[entry.index].value.op.name for entry in parts.saved]
    assert kept == ["lt"]  # a bool mask is the cheapest cut
    assert all(node.op.name != "random" for node in parts.backward)


def test_numbers_are_drawn_again_on_a_gpu() -> None:
    """There a number costs less than to write and read its four bytes: the seed is saved."""
    joint = joint_text(
        """\
graph(%0: f32[9 @cuda:0] "x", %1: f32[9 @cuda:0] "tangent"):
    %9: i64[ @cuda:0] = random_seed(device=cuda:0)
    %2: f32[9 @cuda:0] = random(%9, distribution="uniform", params=(0.0, 1.0), sizes=(9,), dtype=f32, device=cuda:0)
    %6: f32[9 @cuda:0] = mul(%0, %2)
    %7: f32[9 @cuda:0] = mul(%1, %2)
    return %6 requires_grad, %7""", 1, 1, (1,),
    )  # fmt: skip
    parts = partition(joint)
    assert [parts.forward.outputs[entry.index].value.op.name for entry in parts.saved] == ["random_seed"]
    assert [node.op.name for node in parts.backward] == ["random", "mul"]


def test_symbols_that_no_tensor_tells_are_saved_as_numbers() -> None:
    joint = joint_text(
        """\
graph(%0: f32[s0, s1] "x", %1: f32[s0*s1] "tangent"):
    %2: f32[s0*s1] = view(%0, sizes=(s0*s1,))
    %3: f32[s0, s1] = view(%1, sizes=(s0, s1))
    return %2 requires_grad, %3""", 1, 1, (1,),
    )  # fmt: skip
    parts = partition(joint)
    assert [
        (entry.name, entry.kind, entry.slot, entry.dim) for entry in parts.saved if isinstance(entry, SymbolBinding)
    ] == [
        ("s0", "size", 0, 0),
        ("s1", "size", 0, 1),
    ]
    tangent = torch.randn(6)
    (gradient,) = interpret(parts.backward, [2, 3, tangent]).outputs
    assert torch.equal(gradient, tangent.view(2, 3))
    alias = parts.backward.outputs[0].alias
    assert alias is not None and (alias.of, alias.index, str(alias.view)) == ("input", 2, "f32[s0, s1]")


def test_gradients_that_share_memory_say_so() -> None:
    parts = partition(joint_of(gradient_is_tangent, CASES["gradient_is_tangent"][1]()))
    aliases = [output.alias for output in parts.backward.outputs]
    assert [(alias.of, alias.index, alias.view) for alias in aliases if alias] == [("input", 0, None)] * 2
    assert parts.saved == ()


def test_a_written_input_is_saved_as_a_copy() -> None:
    parts = check(saves_what_it_overwrites, CASES["saves_what_it_overwrites"][1]())
    assert all(entry.of == "output" for entry in parts.saved)


def test_history_of_a_written_input_goes_through_autograd() -> None:
    parts = check(overwrites_non_leaf, CASES["overwrites_non_leaf"][1]())
    assert parts.signature.carried == (Carried(0, 1),)
    assert parts.signature.num_outputs == 1
    assert parts.forward.writes == ()


def test_nothing_to_differentiate() -> None:
    """The only output is a view of the input: it is rebuilt outside, where eager differentiates it."""
    parts = partition(joint_of(lambda c, x: c("view", x, -1), (grad(3, 4),)))
    assert parts.signature.tangents == ()
    assert parts.signature.gradients == ()


def stream(c: Any, x: Any, w: Any) -> Any:
    """Three branches of a residual stream."""
    for _ in range(3):
        x = c(torch.add, x, c(torch.matmul, c(torch.sin, x), w))
    return x


def test_sums_of_a_stream_are_saved_rather_than_made_from_all_branches() -> None:
    """Also if a branch is half as large: it would have to be in memory in each stage of the backward."""
    parts = partition(joint_of(stream, (grad(64, 8), grad(8, 8))))
    kept = [parts.forward.outputs[entry.index].value.op.name for entry in parts.saved if entry.of == "output"]
    assert kept == ["sin", "add", "sin", "add", "sin"]  # sines for the products, no product


NARROW = """\
graph(%0: f32[64, 8] "x", %1: bf16[8, 8] "w", %2: f32[64, 8] "tangent"):
    %3: bf16[64, 8] = convert(%0, dtype=bf16)
    %4: bf16[64, 8] = aten.mm.default(%3, %1)
    %5: f32[64, 8] = convert(%4, dtype=f32)
    %6: f32[64, 8] = add(%0, %5)
    %7: bf16[64, 8] = convert(%6, dtype=bf16)
    %8: bf16[64, 8] = aten.mm.default(%7, %1)
    %9: f32[64, 8] = convert(%8, dtype=f32)
    %10: f32[64, 8] = add(%6, %9)
    %11: f32[64, 8] = mul(%2, %10)
    %12: bf16[64, 8] = convert(%11, dtype=bf16)
    %13: bf16[8, 8 | 1, 8] = permute(%1, dims=(1, 0))
    %14: bf16[64, 8] = aten.mm.default(%12, %13)
    %15: f32[64, 8] = convert(%14, dtype=f32)
    %16: f32[64, 8] = mul(%15, %6)
    return %10 requires_grad, %16"""


def test_a_sum_that_two_stages_need_is_saved_though_its_branch_is_smaller() -> None:
    """%6 is read in both stages and not made from %4; %10 only in one, so %8 is saved."""
    parts = partition(joint_text(NARROW, 2, 1, (1, None)))
    kept = [str(parts.forward.outputs[entry.index].value.spec)[:4] for entry in parts.saved if entry.of == "output"]
    assert kept == ["f32[", "bf16"]


def gathered(c: Any, x: Any, w: Any, rows: Any) -> Any:
    """Two layers that gather by the same rows."""
    at = c(torch.Tensor.expand, c(torch.Tensor.unsqueeze, rows, 1), 64, 8)
    for _ in range(2):
        x = c(torch.matmul, c(torch.gather, x, 0, at), w)
    return x


def test_what_is_computed_from_less_in_memory_is_computed_again_for_several_stages() -> None:
    """Indices of all elements, from those of the rows."""
    joint = joint_of(gathered, (grad(64, 8), grad(8, 8), torch.arange(64)))
    parts = partition(replace(joint, graph=simplified(joint.graph, JOINT_PASSES)))
    values = [parts.forward.outputs[entry.index].value for entry in parts.saved if entry.of == "output"]
    assert [value.tensor.sizes for value in values if value.tensor.dtype is torch.int64] in ([], [(64,)])
