"""Deques from outside that a frame only fills: code behind the region adds the items, and no guard asks for the others.

    self.window.append(loss.item())      CallEffect(deque.append, self.window, <number>)

Whatever reads such a deque breaks the graph; what was added is in it then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.effects import CallEffect
from kiln.capture.interpreter.native_calls import natives
from kiln.capture.interpreter.variables.builtin import Builtin
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.sequence import List, Tuple


def fills(function: Callable[..., object], takes_items: bool) -> None:
    """A method that adds its argument, or with `takes_items` the items of it."""

    @handles(function)
    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        is_outer = args and args[0].source is not None and args[0].python_type() is deque
        is_known = not takes_items or (len(args) == 2 and isinstance(args[1], List | Tuple))
        if not is_outer or len(args) != 2 or kwargs or not is_known:
            return natives(s).call(function, args, kwargs)
        s.guard_type(args[0])
        added = Tuple(list(args[1].items(s))) if takes_items else args[1]  # type: ignore[attr-defined]
        s.effects.note(CallEffect(Builtin(function), (args[0], added), message=True))
        return Constant(None)


for _method, _takes_items in ((deque.append, False), (deque.appendleft, False), (deque.extend, True)):
    fills(_method, _takes_items)
