"""The report says why something was compiled again, why it runs eager and where the graph breaks."""

from __future__ import annotations

import io
import pdb
import re
import sys
import time
import traceback
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from kiln.graph.passes import FORWARD_PASSES, GRAPH_PASSES, JOINT_PASSES
from kiln.loops.kernel.passes.pipeline import CPP_PASSES, TRITON_PASSES
from kiln.loops.program.passes.pipeline import CPU_PROGRAM_PASSES, GPU_PROGRAM_PASSES
from kiln.pipeline.switches import pass_names
from kiln.report import Report, log_names
from kiln.report.listeners import KINDS, STAGES, UnknownLog
from kiln.support.errors import KilnError
from kiln.support.events import EventSink

HERE = re.escape(Path(__file__).name)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.mode = "a"

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        y = self.layer(x) * scale
        return y + 1 if self.mode == "a" else y


def reported(compiled: Any) -> Report:
    report = compiled.report()
    assert isinstance(report, Report)
    return report


def reasons(compiled: Any) -> list[str]:
    return [f"{entry.function}: {entry.reason}" for entry in reported(compiled).recompiles]


def test_reasons_in_the_terms_of_the_program() -> None:
    net = Net()
    compiled, x = kiln.compile(net), torch.ones(2, 4)
    compiled(x)
    compiled(torch.ones(3, 4))
    net.mode = "b"
    compiled(x)
    with torch.no_grad():
        compiled(x)
    compiled(x.double().float().requires_grad_())
    net.layer = nn.Linear(4, 4, bias=False)
    compiled(x)
    found = reasons(compiled)
    assert found[0] == "Net.forward: shape of x is [3, 4], and was [2, 4]"
    assert re.fullmatch(
        rf"Net.forward: self.mode is 'b', and was 'a' \(read at .*{HERE}:\d+, in Net.forward\)", found[1]
    )
    assert found[2] == "Net.forward: torch's state is grad_mode=False, and was grad_mode=True"
    assert found[3] == "Net.forward: requires_grad of x is True, and was False"
    assert "self.layer.bias is None" in found[-1]


def test_relations_of_sizes_and_classes() -> None:
    def program(x: Tensor, what: object) -> Tensor:
        y = x * 2 if x.shape[0] > 4 else x * 3
        return y + 1 if isinstance(what, str) else y

    compiled = kiln.compile(program, dynamic=True)
    compiled(torch.ones(8), "text")
    compiled(torch.ones(3), "text")
    compiled(torch.ones(3), [1, 2])
    found = reasons(compiled)
    assert "x.size(0)" in found[0] and found[0].startswith(program.__qualname__)
    assert "what is of class list, and was of class str" in found[1]


class Marked(Tensor):
    pass


def test_what_differs_between_tensors() -> None:
    x, conjugate = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.complex64).conj()
    pairs = {
        "stride of x is [1, 2], and was [3, 1]": (x, torch.ones(3, 2).t()),
        "type(x) is Marked, and was Tensor": (x, x.as_subclass(Marked)),
        "x.is_conj() is True, and was False": (conjugate.conj().clone(), conjugate),
        "device of x is meta, and was cpu": (x, x.to("meta")),
        "shape of x is [2, 3, 1], and was [2, 3]": (x, x[..., None]),
        "x is None, and was a Tensor (float32, [2, 3], cpu)": (x, None),
        "x is a Tensor (float32, [2, 3], cpu), and was None": (None, x),
    }
    for expected, calls in pairs.items():
        compiled = kiln.compile(lambda x: x if x is None else x + 1, options={"cache": False})
        for x in calls:
            compiled(x)
        assert [entry.reason.partition(" (read at")[0] for entry in reported(compiled).recompiles] == [expected]


def test_the_storage_offset_of_a_tensor() -> None:
    base = torch.arange(8.0)
    compiled = kiln.compile(lambda x: base[:2] + x[1:].storage_offset(), options={"cache": False})
    for x in (base[:4], base[3:7]):
        compiled(x)
    (entry,) = reported(compiled).recompiles
    assert entry.reason.startswith("x.storage_offset() is 3, and was 0")


def test_tensors_that_share_memory_and_functions() -> None:
    def program(x: Tensor, y: Tensor, function: Any) -> Tensor:
        x.add_(1)
        return function(x) + y

    compiled, shared = kiln.compile(program, options={"cache": False}), torch.ones(2)
    compiled(torch.ones(2), torch.ones(2), torch.sin)
    compiled(shared, shared, torch.sin)
    compiled(torch.ones(2), torch.ones(2), torch.cos)
    found = [entry.reason.partition(" (read at")[0] for entry in reported(compiled).recompiles]
    assert found[0] == "x and y share memory, and did not"
    assert found[1] in ("function is torch.cos, and was torch.sin", "x and y no longer share one memory as they did")


def test_the_line_of_the_program_that_calls_a_library() -> None:
    net = nn.Sequential(nn.Dropout(0.5))

    def program(x: Tensor) -> Tensor:
        return net(x) + 1

    compiled = kiln.compile(program, options={"cache": False})
    compiled(torch.ones(2))
    net.eval()
    compiled(torch.ones(2))
    (reason,) = reasons(compiled)
    assert re.search(rf"training is False, and was True \(read at .*{HERE}:\d+, in .*program\)", reason), reason
    with pytest.warns(UserWarning, match="runs eager") as caught:
        kiln.compile(lambda x: x + 1, options={"cache": False})(torch.ones(2, device="meta"))
    assert [warning.filename for warning in caught] == [__file__]


class Loud:
    def __repr__(self) -> str:
        raise AssertionError("code of the program")


def test_guards_neither_print_tensors_nor_call_repr() -> None:
    def program(x: Tensor, what: object) -> Tensor:
        return x + 1 if what is None else x

    compiled = kiln.compile(program)
    for what in (None, [torch.full((3,), 0.123)], Loud(), {"w": torch.full((3,), 0.123)}):
        compiled(torch.ones(2), what)
    text = str(reported(compiled))
    assert "0.123" not in text and "what" in text


def test_no_section_crowds_out_another() -> None:
    events, report = EventSink(), Report("f")
    events.listen(report.record)
    for number in range(30):
        events.emit("note", text=f"is_compiling() answers True: {number} breaks")
        events.emit(
            "graph_break", code="KILN1007", at=f"m.py:{number}, in f", reason="`if` asks for a value", hint="where"
        )
        events.emit("recompile", function="f", reason=f"n is {number}, and was 0", hint="keep n")
        events.emit("eager", code="KILN1090", reason=f"`f{number}` was compiled 8 times", hint="dynamic")
    text = report.text()
    for start in ("eager KILN1090", "recompiled f: n is", "break KILN1007 m.py:", "is_compiling()"):
        assert sum(line.startswith(start) for line in text.splitlines()) == 8
    assert text.count("... and 22 more") == 4 and text.count("    try: ") == 24


def test_report_is_a_method_of_every_compiled_thing() -> None:
    net = Net()
    for model in (torch.sin, lambda x: x + 1, net, net.forward):
        compiled: Any = kiln.compile(model)
        compiled(torch.ones(1, 4))
        assert compiled.report().compiles == 1

    class Own(Net):
        def report(self) -> str:
            return "mine"

    assert kiln.compile(Own()).report() == "mine"


def test_the_log_of_recompiles(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KILN_LOG", "recompiles")
    compiled = kiln.compile(lambda x, n: x + n)
    for n in ("a", None, 3):
        with pytest.raises(TypeError) if not isinstance(n, int) else monkeypatch.context():
            compiled(torch.ones(2), n)
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert len(lines) == 2 and all("recompile" in line and "reason=" in line for line in lines)


def test_unknown_names_in_the_log_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_LOG", "lowering,nonsense")
    with pytest.raises(UnknownLog, match=r"KILN5007[\s\S]*nonsense"):
        kiln.compile(torch.sin)
    assert log_names("recompiles, lowering", pass_names()) == {"recompile", "lowering"}


def test_the_log_knows_all_stages_and_events() -> None:
    """Every name that the package emits."""
    source = "".join(file.read_text() for file in Path(kiln.__file__).parent.rglob("*.py"))
    assert set(re.findall(r"[. ](?:stage|Stage)\(\"([^\"]+)\"", source)) <= STAGES
    assert set(re.findall(r"events\.emit\(\s*\"(\w+)\"", source)) <= KINDS


def test_the_log_of_a_pass(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lists = (*JOINT_PASSES, *FORWARD_PASSES, *GRAPH_PASSES, *CPU_PROGRAM_PASSES, *GPU_PROGRAM_PASSES, *CPP_PASSES)
    names = {step.name for step in (*lists, *TRITON_PASSES)}
    assert log_names(",".join(names), pass_names()) == names
    monkeypatch.setenv("KILN_LOG", "cse")
    kiln.compile(lambda x: x.sin() + x.sin(), options={"cache": False})(torch.ones(2))
    lines = capsys.readouterr().err.splitlines()
    assert any("kiln [cse] pass name=cse changes=1" in line for line in lines), lines
    assert all("kiln [cse]" in line for line in lines)


def failing(x: Tensor) -> Tensor:
    x = x + 1
    time.sleep(0)
    x = x * 2
    time.sleep(0)
    raise ValueError("at the end")


def test_frames_have_the_names_and_lines_of_the_program() -> None:
    """Also behind graph breaks, in loops, handlers and inlined calls: each frame of eager has one entry."""
    for program in (failing, failing_in_a_loop, failing_with, failing_finally, lambda x: failing(x) + 1):
        for warm in range(2):
            compiled = kiln.compile(program)
            found = [frames_of(function, torch.ones(2), kind=ValueError) for function in (compiled, program)]
            assert found[0] == found[1], (program, warm)


def failing_in_a_loop(x: Tensor) -> Tensor:
    for _ in range(3):
        time.sleep(0)
        x = x * 2
    return failing(x)


def failing_with(x: Tensor) -> Tensor:
    with nullcontext():
        time.sleep(0)
        return failing(x * 2)


def failing_finally(x: Tensor) -> Tensor:
    try:
        x = failing(x)
    finally:
        time.sleep(0)
        x = x + 1
    return x


class Mismatched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(5, 5)

    def forward(self, x: Tensor, late: bool = False) -> Tensor:
        if late:
            time.sleep(0)
        return self.second(self.first(x))  # type: ignore[no-any-return]


def caught_by_the_program(model: Mismatched, x: Tensor) -> list[str]:
    try:
        return [str(model(x))]
    except RuntimeError:
        return traceback.format_exc().splitlines()


def added(x: Tensor) -> Tensor:
    return x + torch.ones(7)


def frames_of(
    function: Callable[..., object], *arguments: object, kind: type[Exception] = RuntimeError
) -> list[tuple[int | None, str]]:
    with pytest.raises(kind) as caught:
        function(*arguments)
    frames = traceback.extract_tb(caught.value.__traceback__)
    return [(frame.lineno, frame.name) for frame in frames if frame.filename == __file__]


def test_errors_of_operators_have_the_traceback_of_eager() -> None:
    """Where the mismatch is found while tracing, in inlined calls, behind a graph break and in a handler."""
    model, x = Mismatched(), torch.ones(3, 4)
    programs: list[Callable[[Tensor], object]] = [
        lambda x: nn.Sequential(model)(x * 2),
        lambda x: model(x),
        lambda x: [added(row) for row in x],
    ]
    for program in programs:
        assert frames_of(kiln.compile(program), x) == frames_of(program, x)
    assert frames_of(kiln.compile(model), x, True)[-1] == frames_of(model, x, True)[-1]
    compiled = kiln.compile(caught_by_the_program)
    told, expected = ([line for line in f(model, x) if __file__ in line] for f in (compiled, caught_by_the_program))
    assert told == expected


def test_the_nearest_variant_is_compared() -> None:
    def program(x: Tensor, mode: str, count: int) -> Tensor:
        return x * count if mode == "a" else x + count

    compiled = kiln.compile(program, options={"cache": False})
    x = torch.ones(3)
    for arguments in ((x, "a", 3), (x, "b", 3), (x.double(), "b", 3), (x, "a", 4), (x[None], "b", 3)):
        compiled(*arguments)
    reasons = [found.reason for found in compiled.report().recompiles]
    assert [reason.split(" is ")[0] for reason in reasons] == ["mode", "dtype of x", "count", "shape of x"], reasons


def test_a_break_in_a_library_names_the_line_of_the_program() -> None:

    def program(x: Tensor) -> Tensor:
        return x * len(uuid.uuid4().hex)

    with pytest.raises(KilnError, match=rf"^KILN1010  .*{HERE}:\d+, in .*program"):
        kiln.compile(program, fullgraph=True)(torch.ones(2))
    compiled = kiln.compile(program)
    compiled(torch.ones(2))
    assert re.search(rf"break KILN1010 .*{HERE}:\d+, in .*program: `urandom`", str(compiled.report()))


def stepped(x: Tensor) -> Tensor:
    y = x + 1
    breakpoint()
    z = y * 2
    return z - 1


def outer(x: Tensor) -> Tensor:
    return stepped(x * 3) + 1


@pytest.mark.parametrize(("program", "commands"), [(stepped, "nnn"), (outer, "ssssn")])
def test_a_debugger_steps_through_the_lines(program: Any, commands: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind `breakpoint()` the function runs in Python, with all its variables."""
    output = io.StringIO()

    def debug() -> None:
        debugger = pdb.Pdb(stdin=io.StringIO("\n".join([*commands, "p 'values', x, y, z", "c", ""])), stdout=output)
        debugger.use_rawinput = False
        debugger.set_trace(sys._getframe(1))

    monkeypatch.setattr(sys, "breakpointhook", debug)
    x = torch.ones(2)
    torch.testing.assert_close(kiln.compile(program)(x), x * 3 if program is stepped else x * 7 + 1)
    lines = [line for line in output.getvalue().splitlines() if line.startswith("-> ")]
    assert "-> z = y * 2" in lines and "-> return z - 1" in lines and not any("def" in line for line in lines)
    assert "('values', tensor" in output.getvalue()


def test_kernels_have_readable_names() -> None:
    def program(x: Tensor) -> Tensor:
        return nn.functional.gelu(nn.functional.layer_norm(x, (64,)))

    report = kiln.explain(program)(torch.randn(8, 64))
    assert report.kernels == len(report.kernel_names) == 1
    assert re.fullmatch(r"\w+: .*layer_norm.*gelu.*", report.kernel_names[0])
    assert report.kernel_names[0] in str(report)
    names = kiln.explain(lambda x: (x.sin() + 1).view(-1).cos())(torch.ones(4)).kernel_names
    assert names == ["sin_cos: Tensor.sin, operator.add, Tensor.cos"]
