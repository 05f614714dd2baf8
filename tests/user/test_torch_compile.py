"""`torch.compile(..., backend="kiln")` without an import of Kiln, and `python -m kiln run`."""

from __future__ import annotations

import inspect
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from kiln.api.compiler import session_of
from kiln.api.modes import ModeWarning, warn_of_mode
from kiln.api.torch_backend import TorchBackend, symbolic_inputs
from kiln.cli.main import main
from kiln.support.errors import KilnError
from kiln.support.options import Options
from tests.user.conftest import Run

BY_NAME = """
    import sys
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.second(nn.functional.gelu(self.first(x)))

    model = Net()
    compiled = torch.compile(model, backend="kiln")
    assert "kiln" in torch._dynamo.list_backends()
    for rows in (3, 5, 6, 7):
        x, same = (torch.arange(rows * 4.0).reshape(rows, 4).requires_grad_() for _ in range(2))
        result = compiled(x)
        result.square().sum().backward()
        gradient, model.first.weight.grad = model.first.weight.grad, None
        expected = model(same)
        expected.square().sum().backward()
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(x.grad, same.grad)
        torch.testing.assert_close(gradient, model.first.weight.grad)
        model.zero_grad()
    import kiln.api.compiler
    reports = list(kiln.api.compiler.REPORTS.values())
    assert [(report.compiles, report.eager) for report in reports] == [(1, 0), (1, 0)], reports  # static, then symbolic

    x = torch.ones(2, 4)
    expected = model(x)
    model.compile(backend="kiln", fullgraph=True)
    torch.testing.assert_close(model(x), expected)

    @torch.compile(backend="kiln", options={"variants": 2}, dynamic=True)
    def scaled(x, n: int):
        return x.repeat(n, 1) * n

    for n in (2, 3, 4):
        torch.testing.assert_close(scaled(x, n), x.repeat(n, 1) * n)
    newest = list(kiln.api.compiler.REPORTS.values())[-1]
    assert newest.compiles == 1 and "program.py" in newest.name, newest

    torch.compiler.reset()
    assert newest.compiles == 0
    torch.testing.assert_close(scaled(x, 5), x.repeat(5, 1) * 5)

    try:
        torch.compile(lambda x: x + 1, backend="kiln", options={"variant": 2})(x)
    except Exception as error:
        assert "KILN5001" in str(error) and "did you mean `variants`" in str(error)
    else:
        raise AssertionError("a wrong option was accepted")
"""


def test_by_name_without_an_import(run: Run) -> None:
    run(BY_NAME)


OPERATORS = """
    import torch
    from torch.utils.checkpoint import checkpoint

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return 2 * x * gradient

    def with_checkpoint(x): return checkpoint(lambda y: y.sin().exp(), x, use_reentrant=False)
    def with_autograd_function(x): return Square.apply(x.sin())
    def with_vmap(x): return torch.vmap(lambda row: row.sin().sum())(x)
    def with_cond(x): return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))
    def with_grad(x): return torch.func.grad(lambda y: (y**2).sum())(x)
    def with_no_grad(x):
        with torch.no_grad():
            y = x * 2
        return x * y
    def with_mutation(x):
        y = x.clone()
        y[0] = 3
        return y.mul_(2)
    def with_item(x): return x * x.sum().item()

    for function in [value for name, value in globals().items() if name.startswith("with_")]:
        compiled = torch.compile(function, backend="kiln")
        for rows in (3, 4):
            x, same = (torch.linspace(-1, 2, rows * 2).reshape(rows, 2).requires_grad_() for _ in range(2))
            results = compiled(x), function(same)
            torch.testing.assert_close(*results)
            for result in results:
                result.sum().backward()
            torch.testing.assert_close(x.grad, same.grad)
"""


def test_operators_that_take_functions(run: Run) -> None:
    run(OPERATORS)


def test_without_the_native_layer_the_graph_runs_eager(run: Run) -> None:
    done = run(
        """
        import sys, types
        sys.modules["kiln.native._frames"] = None
        import torch
        x = torch.ones(3)
        assert torch.equal(torch.compile(lambda x: x + 1, backend="kiln")(x), x + 1)
        """
    )
    assert done.stderr.count("KILN5011") == 1


def graph(function: Any, **symbols: Any) -> torch.fx.GraphModule:
    module = torch.fx.symbolic_trace(function)
    for node in module.graph.nodes:
        if node.name in symbols:
            node.meta["example_value"] = symbols[node.name]
    return module


def test_a_graph_of_ones_own() -> None:
    module = graph(lambda x, y: torch.relu(x) + y)
    x, y = torch.randn(3, 4), torch.randn(4)
    compiled = TorchBackend()(module, [x, y], mode="default")
    torch.testing.assert_close(compiled(x, y), torch.relu(x) + y)
    assert kiln.report_of(compiled).compiles == 1
    assert symbolic_inputs(graph(lambda x: x, x=torch.ones(2))) == {}
    with pytest.raises(KilnError, match="KILN5003"):
        TorchBackend()(module, [x, y], mode="fastest")


PROGRAM = """
    import sys
    import torch

    @torch.compile
    def loss(x):
        return (x.sin() + 1).sum()

    model = torch.nn.Linear(3, 3)
    model.compile(fullgraph=True)
    doubled = torch.compile(lambda x: x * 2, options={"triton.cudagraphs": True, "max_autotune": True})
    eager = torch.compile(lambda x: x * 3, backend="eager") if "eager" in sys.argv else None
    for rows in (2, 3, 4):
        x = torch.ones(rows, 3)
        torch.testing.assert_close(loss(x), (x.sin() + 1).sum())
        torch.testing.assert_close(model(x), x @ model.weight.T + model.bias)
        torch.testing.assert_close(doubled(x), x * 2)
    print(__name__, sys.argv[1:], "torch._dynamo" in sys.modules)
    if __name__ == "__main__" and "fail" in sys.argv:
        sys.exit(3)
"""


def test_run_a_script(run: Run, tmp_path: Path) -> None:
    done = run(PROGRAM, "-m", "kiln", "run", str(tmp_path / "program.py"), arguments=("--steps", "2"))
    assert done.stdout == "__main__ ['--steps', '2'] False\n"
    lines = done.stderr.splitlines()
    assert any(line.startswith("kiln run: 3 compiled functions, ") for line in lines), done.stderr
    assert any(line.startswith("kiln: Linear  ") for line in lines), done.stderr
    assert done.stderr.count("KILN5014") == 1 and "max_autotune=True" in done.stderr


def test_run_a_module_with_a_report_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    done = run(
        PROGRAM, "-m", "kiln", "run", "--report", str(file), "-m", "program", "eager", arguments=("fail",), fails=True
    )
    assert done.returncode == 3
    data = json.loads(file.read_text())
    assert data["schema"] == 1 and [report["name"] for report in data["reports"]] == ["loss", "Linear", "<lambda>"]
    assert all(report["eager"] == 0 and report["compiles"] for report in data["reports"])


@pytest.mark.parametrize("program", [("nothing.py",), ("-m", "nothing")])
def test_run_without_a_program(program: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *program]) == 2
    assert capsys.readouterr().err == f"kiln run: there is no {'module' if '-m' in program else 'file'} {program[-1]}\n"


def test_replacing_torch_compile_in_a_process() -> None:
    before = torch.compile
    restore = kiln.replace_torch_compile()
    try:
        function = torch.compile(lambda x: x + 1)
        limited = torch.compile(dynamic=True, recompile_limit=2)(lambda x: x + 2)
        module = nn.Linear(2, 2)
        module.compile(mode="reduce-overhead")
        same = torch.compile(module, disable=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for compiled in (function, limited):
                assert kiln.report_of(compiled).compiles == 0
        assert same is module and kiln.report_of(module).name == "Linear"
        with pytest.raises(KilnError, match="KILN5003"):
            torch.compile(module, mode="fastest")
    finally:
        restore()
    assert torch.compile is before


def options_of(compiled: Any) -> Options:
    return session_of(compiled).settings.options


def test_a_mode_and_options_hold_together(monkeypatch: pytest.MonkeyPatch) -> None:
    restore = kiln.replace_torch_compile()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            limited = torch.compile(lambda x: x, mode="reduce-overhead", recompile_limit=16)
            graphs = torch.compile(lambda x: x, mode="reduce-overhead", backend="cudagraphs")
        warn_of_mode.cache_clear()
        with pytest.warns(ModeWarning, match="KILN5012") as caught:
            torch.compile(lambda x: x, mode="max-autotune", recompile_limit=16)
            kiln.compile(lambda x: x, mode="max-autotune")  # says it once
        with pytest.raises(KilnError, match="KILN5003"):
            torch.compile(lambda x: x, mode="fastest", recompile_limit=16)
    finally:
        restore()
    assert options_of(limited).cuda_graphs and options_of(limited).variants == 16
    assert options_of(graphs).cuda_graphs
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("decorator", [False, True])
def test_the_warning_of_a_mode_names_the_users_line(decorator: bool) -> None:
    restore = kiln.replace_torch_compile()
    try:
        for compile in (kiln.compile, torch.compile):
            warn_of_mode.cache_clear()
            with pytest.warns(ModeWarning) as caught:
                if decorator:
                    compile(mode="max-autotune")(lambda x: x)
                else:
                    compile(lambda x: x, mode="max-autotune")
            assert [warning.filename for warning in caught] == [__file__]
    finally:
        restore()


def test_signatures_are_those_of_the_original() -> None:
    def function(x: Tensor, *, factor: float = 2.0) -> Tensor:
        """Scale."""
        return x * factor

    restore = kiln.replace_torch_compile()
    try:
        compiled = torch.compile(function)
    finally:
        restore()

    assert inspect.signature(compiled) == inspect.signature(function) and compiled.__doc__ == "Scale."
