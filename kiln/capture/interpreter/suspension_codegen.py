"""Code for a `yield` or `await` of the compiled function: it returns the value, and how the frame continues.

    received = yield x + 1          y, = region(x); <effects>
                             =>     return suspended(y, False, resume_f, [<state>, <sent>], 1, <the same for a handler>)

The driver (`kiln/runtime/suspended.py`) yields the value and calls the resume function with what it is sent.
"""

from __future__ import annotations

from kiln.capture.interpreter.break_codegen import BreakWriter, MakeResume, Resumption
from kiln.capture.interpreter.codegen import CodeWriter
from kiln.capture.interpreter.core import CaptureState, Value
from kiln.capture.interpreter.frame import SymbolicFrame, read_variables
from kiln.native._frames import Driven
from kiln.runtime.suspended import Returned, suspended


def write_suspension(
    s: CaptureState, writer: CodeWriter, frame: SymbolicFrame, value: Value, make_resume: MakeResume, resumed: bool
) -> None:
    """Return what `frame` yields, at the instruction that it has executed last."""
    read_variables(frame)
    frame.saved = frame.stack.copy()
    breaking = BreakWriter(s, writer, [frame], make_resume, resumed)
    yielded = breaking.store(value)
    breaking.prepare()
    for effect in s.effects:
        effect.emit(writer)
    body = writer.body
    place = writer.temporary()
    body.const(None).op("STORE_FAST", place)
    target = frame.ip
    if frame.delegates:
        target = int(frame.decoded.instruction(frame.at).arg)
        target += frame.decoded.instruction(target).name == "END_SEND"
    body.const(suspended).op("LOAD_FAST", yielded).const(frame.delegates)
    write_continuation(writer, breaking.resume(target, int(frame.delegates), [place]), place)
    handler = frame.decoded.handlers[frame.at]
    if handler is None or frame.decoded.instruction(handler.target).name == "INTRINSIC":
        body.const(None).const(None).const(0)
    else:
        results: list[str | None] = [place]
        if handler.lasti:
            results.insert(0, zero := writer.temporary())
            writer.loads.const(0).op("STORE_FAST", zero)
        resumption = breaking.resume(handler.target, 0, results, handler.depth)
        write_continuation(writer, resumption, place)
    body.call(8).op("RETURN_VALUE")


def write_continuation(writer: CodeWriter, resumption: Resumption, place: str) -> None:
    """Push the function, the list of its arguments, and the index of `place` in it."""
    writer.body.const(Driven(resumption.function))
    for name in resumption.arguments:
        writer.body.op("LOAD_FAST", name)
    writer.body.op("BUILD_LIST", len(resumption.arguments)).const(resumption.arguments.index(place))


def write_returned(writer: CodeWriter, name: str) -> None:
    writer.body.const(Returned).op("LOAD_FAST", name).call(1).op("RETURN_VALUE")
