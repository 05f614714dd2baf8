"""`options={"verify": "first"}`: a region's first run is compared with eager, on copies."""

from __future__ import annotations

import gc
import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kiln
from kiln.loops.codegen.cpp.dialect import CPP
from kiln.pipeline.differences import differences
from kiln.pipeline.first_run import PendingComparison
from kiln.pipeline.observation import Observation, gradients_of, observe, storage_copy
from kiln.pipeline.session import KilnWarning
from kiln.support.errors import KilnError
from tests.child import search_path

X = torch.randn(8, 33, generator=torch.Generator().manual_seed(0))
VERIFY = {"verify": "first"}


@pytest.fixture
def wrong_sine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The CPU's kernels compute a sine that is off by 1 %."""
    monkeypatch.chdir(tmp_path)
    spell_sine_wrongly(monkeypatch)


def spell_sine_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for kernels that an earlier test has printed, and not for those of a later one."""
    monkeypatch.setattr("kiln.loops.codegen.print_kernel._PRINTED", {})
    monkeypatch.setitem(CPP.exprs, "sin", "sin({0}) * 1.01f")


def compiled_with_warning(program: Callable[..., Any], *args: object) -> tuple[Any, str]:
    compiled = kiln.compile(program, options=VERIFY)
    with pytest.warns(KilnWarning, match="KILN4030") as caught:
        result = compiled(*args)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(*args), result, equal_nan=True)
    return result, str(caught[0].message)


def test_a_wrong_kernel_is_noticed_and_eager_runs(wrong_sine: None) -> None:
    result, message = compiled_with_warning(lambda x: x.sin() + 1, X)
    torch.testing.assert_close(result, X.sin() + 1, rtol=0, atol=0)
    assert "result 0: largest error 0.0" in message and "against float64" in message


def test_a_wrong_gradient_is_noticed(wrong_sine: None) -> None:
    x = X.clone().requires_grad_()
    compiled = kiln.compile(lambda x: x.cos().sum(), options=VERIFY)
    with pytest.warns(KilnWarning, match="gradient 0: largest error"):
        compiled(x).backward()
    torch.testing.assert_close(x.grad, -X.sin())


def test_a_wrong_change_of_an_input_is_noticed(wrong_sine: None) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.sin_()
        return x.shape[0] * torch.ones(2)

    x = X.clone()
    with pytest.warns(KilnWarning, match="input 0: largest error"):
        kiln.compile(program, options=VERIFY)(x)
    torch.testing.assert_close(x, X.sin(), rtol=0, atol=0)


def test_fullgraph_raises(wrong_sine: None) -> None:
    with pytest.raises(KilnError, match="KILN4030"):
        kiln.compile(lambda x: x.sin(), options=VERIFY, fullgraph=True)(X)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("gradient", [False, True])
def test_the_script_fails_in_the_same_way(wrong_sine: None, tmp_path: Path, large: bool, gradient: bool) -> None:
    x = torch.randn(300 if large else 3, 5).requires_grad_(gradient)
    scale = torch.tensor([2.0, float("inf"), 1.0, -1.0, 0.5])
    program = (lambda x: (x.cos() * scale).sum()) if gradient else (lambda x: x.sin() * scale)
    _, message = compiled_with_warning(program, x)
    (script,) = (tmp_path / "kiln_reproducers").glob("*.py")
    assert str(script) in message
    text = script.read_text()
    assert ("seed=" in text) is large and "sin(" in text and torch.__version__ in text
    assert exit_status(script) == 1


def exit_status(script: Path) -> object:
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    return int(end.value.code or 0)


def test_the_script_succeeds_once_the_fault_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patched:
        spell_sine_wrongly(patched)
        compiled_with_warning(lambda x: x.sin().sum(-1), X)
    (script,) = (tmp_path / "kiln_reproducers").glob("*.py")
    # In another process: this one keeps the kernels that it has printed.
    environment = {**os.environ, "PYTHONPATH": search_path()}
    assert subprocess.run([sys.executable, script], check=False, env=environment).returncode == 0


def raising(x: torch.Tensor) -> torch.Tensor:
    return x.gather(1, torch.tensor([[99]]))


def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.add_(1)
    return x.t(), x, x[2:], x.sum()


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "softmax": lambda x: x.softmax(-1).log(),
    "dropout": lambda x: F.dropout(x, 0.3) + torch.rand(33),
    "views": views,
    "integers": lambda x: (x.argmax(1), x.shape[0] * 2, None),
    "nan": lambda x: (x - 1).log() / 0,
    "bf16": lambda x: (x.bfloat16() @ x.bfloat16().t()).softmax(-1) * 3.1,
    "no gradients in parts": lambda x: (x * x.detach().exp()).sum() + 1,
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_right_programs_are_let_be(name: str, gradient: bool, dynamic: bool | None) -> None:
    program = PROGRAMS[name]
    compiled = kiln.compile(program, dynamic=dynamic, fullgraph=True, options=VERIFY)
    results = []
    for function in (program, compiled):
        torch.manual_seed(5)
        x = X.clone().requires_grad_(gradient)
        results.append([function(x * 1 if gradient else x), x.detach(), torch.rand(1)])
    torch.testing.assert_close(results[1], results[0], equal_nan=True)


def test_an_error_of_the_program_is_not_a_difference() -> None:
    compiled = kiln.compile(raising, options=VERIFY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError):
            compiled(X)


def test_a_model_in_training_changes_its_state_once() -> None:
    model = nn.Sequential(nn.Linear(33, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.GELU(), nn.Linear(8, 2))
    compiled = kiln.compile(model, options=VERIFY, fullgraph=True)
    states = []
    start = {name: value.clone() for name, value in model.state_dict().items()}
    for run in (model, compiled):
        model.load_state_dict(start)
        torch.manual_seed(2)
        model.zero_grad()
        for _ in range(2):
            run(X).square().sum().backward()
        states.append([dict(model.state_dict()), [parameter.grad for parameter in model.parameters()], torch.rand(1)])
        states[-1][0] = {name: value.clone() for name, value in states[-1][0].items()}
    torch.testing.assert_close(states[1], states[0], rtol=1e-4, atol=1e-4)
    assert kiln.report_of(compiled).eager == 0


COMPUTED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "slice": lambda x: (x * 3)[:, ::2],
    "expanded": lambda x: (x * 3)[:, None, :].expand(8, 5, 33),
    "transposed": lambda x: (x * 3).t(),
    "all": lambda x: x * 3,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_inputs_with_a_history_keep_their_layout(name: str) -> None:
    x = X.clone().requires_grad_()
    compiled = kiln.compile(lambda x: (x.sin() * 2).sum(), fullgraph=True, options=VERIFY)
    (found,) = torch.autograd.grad(compiled(COMPUTED[name](x)), x)
    (expected,) = torch.autograd.grad((COMPUTED[name](x).sin() * 2).sum(), x)
    torch.testing.assert_close(found, expected)


def test_the_program_goes_on_where_no_script_can_be_written(wrong_sine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError("no space left on device")

    kiln.compile(lambda x: x.sin() + 1)(X)  # its kernel is compiled while there is space
    monkeypatch.setattr(Path, "write_text", full)
    result, message = compiled_with_warning(lambda x: x.sin() + 1, X)
    torch.testing.assert_close(result, X.sin() + 1, rtol=0, atol=0)
    assert "no script could be written: OSError: no space left on device" in message
    assert not list(Path("kiln_reproducers").glob("*.py"))


def test_a_script_is_written_to_another_folder_where_its_own_is_read_only(
    wrong_sine: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Path("kiln_reproducers").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _, message = compiled_with_warning(lambda x: x.sin() + 1, X)
    (script,) = tmp_path.glob("kiln_*/*.py")
    assert str(script) in message


def test_a_script_has_inputs_that_are_not_finite(wrong_sine: None, tmp_path: Path) -> None:
    inf, nan = float("inf"), float("nan")
    z = torch.tensor([complex(inf, nan), complex(-inf, -inf), complex(0, nan), complex(nan, -inf), 2j])
    x = torch.tensor([1.0, nan, inf, -inf, 2.0])
    compiled_with_warning(lambda x, z: (x.sin() * 2, z * 2), x, z)
    (script,) = (tmp_path / "kiln_reproducers").glob("*.py")
    assert exit_status(script) == 1


def pending_comparisons() -> int:
    gc.collect()
    return sum(type(found) is PendingComparison for found in gc.get_objects())


def test_the_first_run_frees_what_the_comparison_needed() -> None:
    before = pending_comparisons()
    compiled = kiln.compile(lambda x: x.sin() + 1, options=VERIFY)
    compiled(X)
    assert kiln.report_of(compiled).regions == 1 and pending_comparisons() == before


def test_the_environment_variable(monkeypatch: pytest.MonkeyPatch, wrong_sine: None) -> None:
    monkeypatch.setenv("KILN_VERIFY", "first")
    with pytest.warns(KilnWarning, match="KILN4030"):
        kiln.compile(lambda x: x.sin())(X)
    monkeypatch.setenv("KILN_VERIFY", "second")
    with pytest.raises(KilnError, match="KILN5002"):
        kiln.compile(lambda x: x.sin())


# The comparison.


def run_of(*results: object) -> Observation:
    return Observation(results, shared=(-1,) * len(results))


@pytest.mark.parametrize(
    ("found", "expected", "problem"),
    [
        (torch.ones(2), torch.ones(3), "torch.float32 (2,) on cpu, eager torch.float32 (3,) on cpu"),
        (torch.ones(2).int(), torch.ones(2).long(), "torch.int32 (2,) on cpu, eager torch.int64 (2,) on cpu"),
        (torch.ones(3, 2).t(), torch.ones(2, 3), "strides (1, 2), eager (3, 1)"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "largest error 1 at (1,): 2, eager 3"),
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, 3.0]), "largest error inf at (1,): nan, eager 3.0"),
        (torch.tensor([torch.inf]), torch.tensor([-torch.inf]), "largest error inf at (0,): inf, eager -inf"),
        (torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]), "largest error 0.5 at (1,): 2.5, eager 2.0"),
        (2, 3, "2, eager 3"),
        (None, torch.ones(1), "None, eager tensor([1.])"),
    ],
)
def test_differences(found: object, expected: object, problem: str) -> None:
    assert differences(run_of(found), run_of(expected), None) == f"result 0: {problem}"


def test_rounding_is_no_difference_unless_exact() -> None:
    one = torch.ones(4)
    assert differences(run_of(one + 1e-6), run_of(one), None) == ""
    assert differences(run_of(one + 1e-6), run_of(one), None, exact=True).startswith("result 0: largest error")
    assert differences(run_of(-one * 0), run_of(one * 0), None, exact=True) != ""


def test_the_referee_allows_twice_the_error_of_eager() -> None:
    exact = torch.ones(4, dtype=torch.float64)
    eager = run_of((exact + 0.01).float())
    assert differences(run_of((exact - 0.019).float()), eager, lambda: run_of(exact)) == ""
    assert "against float64: 0.021, eager 0.01" in differences(
        run_of((exact - 0.021).float()), eager, lambda: run_of(exact)
    )


def test_copies_with_a_history_share_memory_and_may_be_changed() -> None:
    x = torch.ones(4, 4).requires_grad_()
    y = x * 2
    seen = observe(lambda a, b: [a.mul_(3), b.sum()], [y[1], y.t()])
    assert seen.error is None and seen.results[1] == 48 and seen.shared[0] == 0
    (gradient,) = {id(found): found for found in seen.gradients}.values()
    assert gradient is not None
    assert (gradient / gradient[0]).reshape(4, 4).tolist() == [[1] * 4, [3] * 4, [1] * 4, [1] * 4]


def test_copies_share_memory_as_the_inputs() -> None:
    x = torch.zeros(4, 4)
    seen = observe(lambda a, b: [a.add_(1), b.sum()], [x[1], x.t()])
    assert seen.results[1] == 4 and seen.shared[0] == 0 and not x.any()


def test_an_error_of_one_side_is_a_difference() -> None:
    ran, raised = Observation([X]), Observation(error=ValueError("odd"))
    assert differences(raised, ran, None) == "ValueError: odd, eager: no error"
    assert differences(ran, raised, None) == "no error, eager: ValueError: odd"
    assert differences(raised, Observation(error=ValueError("other text")), None) == ""


def test_copies_of_storages_keep_integers() -> None:
    numbers = torch.arange(4)
    assert storage_copy(numbers, torch.float64, False).leaf.dtype is torch.int64
    assert storage_copy(X, torch.float64, False).leaf.dtype is torch.float64
    assert storage_copy(X, None, False).leaf.dtype is torch.float32


def test_inputs_without_a_gradient_have_no_leaf() -> None:
    leaf = torch.ones(3, requires_grad=True)
    (gradient,) = gradients_of([leaf * 2, 3], [None, leaf, None])
    assert gradient is not None and gradient.shape == (3,)


@pytest.mark.parametrize("grad", [False, True])
def test_what_a_side_does_not_leave_is_no_difference(
    grad: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sides(x: torch.Tensor) -> dict[str, torch.Tensor]:
        if x.sum() > 0:
            return {"y": x * 2}
        return {"y": x + 1, "z": x.t() @ x.exp()}

    monkeypatch.chdir(tmp_path)
    compiled = kiln.compile(sides, options={**VERIFY, "cache": False})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in (X + 1, X - 1, X + 2, X - 2):
            x = x.clone().requires_grad_(grad)
            torch.testing.assert_close(compiled(x), sides(x))
    assert kiln.report_of(compiled).eager == 0
