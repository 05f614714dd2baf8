"""Code that leaves a variant: numbers drawn at random until then are drawn again by what runs instead.

states = random_states(devices)
outputs = run_checked(region, x)
if outputs is None:
    restore_random_states(states)
    return side_exit(x)
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial

from kiln.capture.bytecode.assemble import Assembler, Label
from kiln.capture.interpreter.core import CaptureState
from kiln.capture.interpreter.host_draws import DRAWN, Draws
from kiln.capture.interpreter.speculation import write_exit
from kiln.runtime.checked_region import random_states, restore_random_states
from kiln.runtime.host_draws import HostDraws
from kiln.tensor.spec import TensorSpec

STATES = "_kiln_random_states"


def write_draws(
    head: Assembler, draws: HostDraws, leaves: int, side_exit: Callable[..., object], code: types.CodeType
) -> None:
    """Draw in front of the region, or leave if what is drawn has another form."""
    head.const(draws)
    head.call(0)
    head.op("COPY", 1)
    head.const(None)
    head.op("IS_OP", 0)
    exit_unless(head, partial(write_exit, head, side_exit, code), False)
    head.op("UNPACK_SEQUENCE", leaves + 1)
    for number in range(leaves + 1):
        head.op("STORE_FAST", f"{DRAWN}{number}")


def write_leave(s: CaptureState, head: Assembler, code: types.CodeType, side_exit: Callable[..., object]) -> None:
    """Call the side exit, which draws the random numbers of the call again."""
    found = s.part(Draws)
    if (draws := found.plan()) is not None:
        head.const(draws.restore)
        head.op("LOAD_FAST", f"{DRAWN}{found.leaves}")
        head.call(1)
        head.op("POP_TOP")
    write_exit(head, side_exit, code)


def exit_unless(head: Assembler, write_side_exit: Callable[[], None], expected: bool) -> None:
    """Pop a truth value, and leave through the side exit if it is not `expected`."""
    passed = Label()
    head.jump_if(expected, passed)
    write_side_exit()
    head.label(passed)


def write_random_states(s: CaptureState, head: Assembler, leave: Callable[[], None]) -> Callable[[], None]:
    """Keep the states of torch's generators; what leaves behind the region draws from them again."""
    head.const(random_states)
    devices = {str(node.spec.device) for node in s.recorder.nodes if isinstance(node.spec, TensorSpec)}
    head.const(tuple(sorted(devices)))
    head.call(1)
    head.op("STORE_FAST", STATES)

    def leave_restored() -> None:
        head.const(restore_random_states)
        head.op("LOAD_FAST", STATES)
        head.call(1)
        head.op("POP_TOP")
        leave()

    return leave_restored
