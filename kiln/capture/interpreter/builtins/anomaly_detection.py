"""Anomaly detection of autograd: code that turns it on runs eager, since it looks at each node of a backward.

with torch.autograd.set_detect_anomaly(debug): ...      captured where `debug` is false, as it was
"""

from __future__ import annotations

import torch

from kiln.capture.interpreter.breaks import SkippedCode
from kiln.capture.interpreter.core import Args, CaptureState, Handler, Kwargs, Value, handles
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import CallSource, ModuleGlobalSource

OFF = {"is_anomaly_enabled": False, "is_anomaly_check_nan_enabled": True}
"""The state under which calls are compiled: in others they run eager (`pipeline/modes.py`)."""


def guard_off(s: CaptureState) -> None:
    for name, value in OFF.items():
        s.guard(CallSource(ModuleGlobalSource(torch.__name__, name)), GuardKind.EQUALS, value)


def asked(name: str) -> Handler:
    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        guard_off(s)
        return s.const(OFF[name])

    return handler


for _name in OFF:
    handles(getattr(torch, _name))(asked(_name))


@handles(torch.set_anomaly_enabled)
def turned(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    given = [value.truth(s) for value in (*args, *kwargs.values())]
    if given not in ([False], [False, True]):
        assert s.frame is not None
        why = "anomaly detection looks at each node of a backward"
        raise SkippedCode(function=s.frame.location().function, why=why)
    guard_off(s)
    return s.const(None)
