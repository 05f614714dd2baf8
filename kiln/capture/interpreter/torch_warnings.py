"""Warnings that torch gives while a call is recorded: each call of the compiled function gives them again.

    F.mse_loss(x, x[:1])     CallEffect(warn_in, text, UserWarning, "model.py", 41, <globals of the model's module>)

The line is that which eager names: in torch's own file, or of the frame that `stacklevel` counts to. What torch gives
once in a process (TORCH_WARN_ONCE) is given at once, by the capture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import nn

from kiln.capture.interpreter.breaks import SideEffectCall
from kiln.capture.interpreter.core import CaptureState
from kiln.capture.interpreter.effects import CallEffect
from kiln.capture.interpreter.frame import SymbolicFrame, running_frame
from kiln.capture.interpreter.speculation import NumberCheck, Speculations
from kiln.graph.ir.rewrite import has_effect
from kiln.graph.trace.log import Target, target_name
from kiln.graph.trace.recorder import forget_effects
from kiln.runtime.heard_warnings import HeardWarning, hearing
from kiln.runtime.warning import WarningPasses, warn_in
from kiln.support.records import dataclass

MODULE_CALL = nn.Module._wrapped_call_impl
"""Calls `forward` by way of one more function; neither is a frame here."""


@final
@dataclass(frozen=True, slots=True)
class Line:
    """Where a warning is given."""

    file: str
    number: int
    namespace: dict[str, object]

    @property
    def module(self) -> str:
        return str(self.namespace.get("__name__") or "<string>")

    def passes(self, s: CaptureState, text: str | None, category: type[Warning]) -> bool:
        """Whether the filters let a warning pass; each call asks again."""
        check = WarningPasses(text, category, self.module, self.number)
        if not check():
            return False
        if s.policy.speculate:
            s.part(Speculations).numbers[NumberCheck(check, 0, 0)] = None
        return True


IGNORED_INSIDE: list[Callable[[CaptureState, str | None, type[Warning], Line], bool]] = []
"""Whether filters that the frame has set ignore a warning (`builtins/printing.py`)."""


def running(s: CaptureState) -> list[SymbolicFrame]:
    """The frames of the compiled function, the innermost first."""
    frames = [running_frame(s)]
    while frames[-1].parent is not None:
        frames.append(frames[-1].parent)
    return frames


def line_of(frame: SymbolicFrame) -> Line:
    return Line(frame.code.co_filename, frame.location().line, frame.globals.dictionary)


def line_at(s: CaptureState, level: int) -> Line:
    """The line of the frame that `stacklevel` counts to in eager; the outermost one if that is outside."""
    lines: list[Line] = []
    for frame in running(s):
        lines.append(line_of(frame))
        if frame.code.co_name == "forward" and frame.parent is not None:
            lines += [module_call_line()] * 2
    return lines[min(level, len(lines)) - 1]


def module_call_line() -> Line:
    code = MODULE_CALL.__code__
    return Line(code.co_filename, max(line or 0 for _, _, line in code.co_lines()), MODULE_CALL.__globals__)


def note_warnings(
    s: CaptureState, target: Target, heard: list[HeardWarning], first: int, call: Callable[[], object] | None
) -> None:
    """Make effects of the frame of what a call of the recorder was heard to warn of, whose nodes begin at `first`.

    `call` makes it again, if it can be repeated.
    """
    recorder = s.recorder
    repeatable = not recorder.calls[-1].effects and not any(map(has_effect, recorder.nodes[first:]))
    once = not torch.is_warn_always_enabled() and call is not None and repeatable and not warns_again(s, call)
    told = {(warning.text, warning.category, warning.file, warning.line): warning for warning in heard}
    for warning in told.values():  # a probe of an operator warns several times
        note_warning(s, target, warning, once)


def warns_again(s: CaptureState, call: Callable[[], object]) -> bool:
    """Whether the same call, which leaves no trace, warns as well."""
    mark, first = s.recorder.mark(), len(s.recorder.nodes)
    with hearing() as heard:
        call()
    del s.recorder.calls[mark:]
    forget_effects(s.recorder._mode, first)
    return bool(heard)


def note_warning(s: CaptureState, target: Target, warning: HeardWarning, once: bool) -> None:
    space = warning.namespace
    line = Line(warning.file, warning.line, space) if space is not None else line_at(s, warning.level)
    if any([ignored(s, warning.text, warning.category, line) for ignored in IGNORED_INSIDE]):
        return
    if not line.passes(s, warning.text, warning.category):
        why = "a filter turns its warning into an error"
        raise SideEffectCall(function=target_name(target), why=why).of_recorded_call()
    given = warning.text, warning.category, line.file, line.number
    if once or s.policy.whole:
        warn_in(*given, line.namespace)
    else:
        s.effects.mention(CallEffect(s.wrap(warn_in, None), (*given, line.namespace), message=True))
