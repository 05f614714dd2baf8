"""What the stance of `torch.compiler.set_stance` says where no variant fits a call.

force_eager              never asked: dispatchers call their functions (csrc/frames/stance.cpp)
eager_on_recompile       the call runs eager
fail_on_recompile        the call raises
eager_then_compile       the first call of a function runs eager, so that its sizes are known when it is compiled
"""

from __future__ import annotations

from kiln.native._frames import Dispatcher, stance
from kiln.pipeline.dispatchers import CALLED, original_of
from kiln.pipeline.seen_inputs import SeenInputs
from kiln.support.errors import KilnError


class CompileForbidden(KilnError, RuntimeError):
    code = "KILN1097"
    what = "`{function}` would be compiled"
    why = "torch.compiler.set_stance('fail_on_recompile') forbids it"
    try_ = ("call it with all kinds of arguments before", "set the stance 'eager_on_recompile'")


def runs_eager(dispatcher: Dispatcher, arguments: dict[str, object], seen: SeenInputs) -> bool:
    """Whether a call that no variant fits runs eager. Raises CompileForbidden."""
    current = stance()
    if current == "fail_on_recompile":
        raise CompileForbidden(function=original_of(dispatcher).__qualname__)
    if current in ("eager_then_compile", "aot_eager_then_compile") and CALLED not in dispatcher.__dict__:
        dispatcher.__dict__[CALLED] = True
        seen.add_arguments(arguments)
        return True
    return current == "eager_on_recompile"
