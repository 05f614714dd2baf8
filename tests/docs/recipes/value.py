"""`datetime.timedelta` from outside: guarded by value, its seconds are a constant."""

RECIPE = "A kind of value"
EDITS = [
    (
        "kiln/capture/interpreter/variables/duration.py",
        "",
        '''"""`datetime.timedelta`: an immutable object of which the program may read the days and seconds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, final

from kiln.capture.interpreter.core import NOT_RESUMABLE, CallSite, CaptureState, Value, wraps
from kiln.capture.interpreter.variables.constant import Constant
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import AttrSource, Source


@final
class Duration(Value):
    __slots__ = ("value",)

    def __init__(self, value: timedelta, source: Source | None) -> None:
        self.value = value
        self.source = source

    def python_type(self) -> type:
        return timedelta

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        if name not in ("days", "seconds"):
            raise self.unsupported(f"attribute {name}", "only its days and seconds are modelled")
        s.guard_type(self)
        if self.source is not None:
            s.guard(AttrSource(self.source, name), GuardKind.EQUALS, getattr(self.value, name))
        return Constant(getattr(self.value, name))


@wraps(timedelta)
def wrap_duration(s: CaptureState, real: Any, source: Source | None) -> Value:
    return Duration(real, source)
''',
    ),
    (
        "kiln/capture/interpreter/capture.py",
        "REGISTERED = (\n",
        "REGISTERED = (\n    duration,\n",
    ),
    (
        "kiln/capture/interpreter/capture.py",
        "from kiln.capture.interpreter.variables import object as objects\n",
        "from kiln.capture.interpreter.variables import duration\n"
        "from kiln.capture.interpreter.variables import object as objects\n",
    ),
]


def check() -> None:
    from datetime import timedelta

    import torch

    import kiln

    compiled = kiln.compile(lambda x, wait: x * wait.seconds, fullgraph=True)
    x = torch.ones(3)
    for seconds, compiles in ((5, 1), (5, 1), (7, 2)):
        torch.testing.assert_close(compiled(x, timedelta(seconds=seconds)), x * seconds)
        assert kiln.report_of(compiled).compiles == compiles
