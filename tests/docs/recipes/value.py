"""`datetime.timedelta` from outside: its length is a constant, guarded."""

RECIPE = "A kind of value"
EDITS = [
    (
        "kiln/capture/interpreter/variables/duration.py",
        "",
        '''"""`datetime.timedelta`: an immutable object whose length the program may ask for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, final

from kiln.capture.interpreter.core import NOT_RESUMABLE, Args, CallSite, CaptureState, Kwargs, Value, wraps
from kiln.capture.interpreter.variables.constant import Constant
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import AttrSource, Source
from kiln.support.records import dataclass


@final
@dataclass(frozen=True, slots=True, eq=False)
class Duration(Value):
    value: timedelta
    source: Source | None

    def python_type(self) -> type:
        return timedelta

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        if name != "total_seconds":
            raise self.unsupported(f"attribute {name}", "only its length is modelled")
        return TotalSeconds(self)


@final
@dataclass(frozen=True, slots=True, eq=False)
class TotalSeconds(Value):
    """The bound method."""

    duration: Duration

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        duration = self.duration
        s.guard_type(duration)
        for name in ("days", "seconds", "microseconds"):
            s.guard(AttrSource(duration.source, name), GuardKind.EQUALS, getattr(duration.value, name))
        return Constant(duration.value.total_seconds())


@wraps(timedelta)
def wrap_duration(s: CaptureState, real: Any, source: Source | None) -> Value:
    return Duration(real, source)
''',
    ),
]


def check() -> None:
    from datetime import timedelta

    import torch

    import kiln

    compiled = kiln.compile(lambda x, wait: x * wait.total_seconds(), fullgraph=True)
    x = torch.ones(3)
    for seconds, compiles in ((5, 1), (5, 1), (7, 2)):
        torch.testing.assert_close(compiled(x, timedelta(seconds=seconds)), x * seconds)
        assert kiln.report_of(compiled).compiles == compiles
