"""The torch-level graph where sizes are symbols: user backends see where each number comes from."""

from __future__ import annotations

import operator

import torch

from kiln.graph.trace.recorder import Recorder
from kiln.runtime.guards.source import LocalSource
from kiln.symbolic.policy import DimChoice, DimKind
from tests.trace.harness import new_recorder

SYMBOL = DimChoice(DimKind.SYMBOL, "test")


def symbolic_input(recorder: Recorder, name: str, *sizes: int) -> torch.Tensor:
    return recorder.add_tensor(torch.ones(sizes), name, LocalSource(name), (SYMBOL,) * len(sizes))


def rows(module: torch.fx.GraphModule) -> str:
    return "\n".join(f"{n.op} {n.name} {getattr(n.target, '__name__', n.target)} {n.args}" for n in module.graph.nodes)


def test_sizes_are_asked_of_the_inputs(golden):
    recorder = new_recorder()
    x, y = symbolic_input(recorder, "x", 3, 4), symbolic_input(recorder, "y", 5)
    doubled = recorder.call("repeat", (x, 1, 2), {})
    steps = recorder.call(torch.arange, (doubled.shape[1] + y.shape[0] // 2,), {})
    module = recorder.finish([doubled, steps]).torch_graph()
    golden(rows(module))
    for n, m, k in ((3, 4, 5), (2, 7, 1)):
        one, other = module(torch.ones(n, m), torch.ones(k))
        assert one.shape == (n, 2 * m) and other.shape == (2 * m + k // 2,)


def test_an_input_that_gives_only_a_size_is_a_placeholder(golden):
    recorder = new_recorder()
    unused, x = symbolic_input(recorder, "unused", 2), symbolic_input(recorder, "x", 3)
    made = recorder.call(torch.zeros, (x.shape[0],), {})
    module = recorder.finish([made]).torch_graph()
    golden(rows(module))
    assert module(torch.ones(7))[0].shape == (7,) and unused.dim() == 1


def test_real_numbers_over_sizes():
    recorder = new_recorder()
    x = symbolic_input(recorder, "x", 3, 4)
    scaled = recorder.call(operator.mul, (x, x.shape[1] ** -0.5), {})
    module = recorder.finish([scaled]).torch_graph()
    torch.testing.assert_close(module(torch.ones(2, 16))[0], torch.full((2, 16), 0.25))


def test_numbers_read_from_data():
    recorder = new_recorder()
    counts = recorder.add_tensor(torch.tensor([3, 4]), "counts", LocalSource("counts"))
    first = recorder.call(operator.getitem, (counts, 0), {})
    number = recorder.call("item", (first,), {})
    made = recorder.call(torch.zeros, (number + 1,), {})
    module = recorder.finish([made]).torch_graph()
    assert module(torch.tensor([6, 0]))[0].shape == (7,)


def test_a_function_in_cpp_behind_one_in_python_of_its_name_is_called_itself():
    recorder = new_recorder()
    x = symbolic_input(recorder, "x", 3)
    joined = recorder.call(torch._C._VariableFunctions.block_diag, ((x, x),), {})  # `torch.block_diag(x, x)`
    module = recorder.finish([joined]).torch_graph()
    assert torch.equal(module(torch.ones(2))[0], torch.block_diag(torch.ones(2), torch.ones(2)))
