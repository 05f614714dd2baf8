"""`kiln.compile_backward`: backwards of eager code, compiled when they are called."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, final

from kiln.api.arguments import check_arguments
from kiln.api.compiler import REPORTS, new_session
from kiln.pipeline.switched_off import switched_off
from kiln.report import Report
from kiln.support.late import late
from kiln.support.options import Options

if TYPE_CHECKING:
    from kiln.pipeline.eager_backward.session import BackwardSession, enter, leave
else:
    BackwardSession = late("kiln.pipeline.eager_backward.session", "BackwardSession")
    enter = late("kiln.pipeline.eager_backward.session", "enter")
    leave = late("kiln.pipeline.eager_backward.session", "leave")

BACKWARDS: dict[tuple[Options, bool], CompiledBackward] = {}
"""What was compiled for each set of options: a context that is opened in every step finds it again."""

__all__ = ["CompiledBackward", "compile_backward"]


@final
class CompiledBackward:
    """A context, to be entered as often as wanted, in any thread."""

    def __init__(self, options: Options, fullgraph: bool) -> None:
        self._session = new_session("compile_backward", options, None, fullgraph)
        self._backwards = BackwardSession(self._session)

    def __enter__(self) -> CompiledBackward:
        enter(self._backwards)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave()

    def report(self) -> Report:
        """What was compiled, and what runs in torch's engine and why."""
        return REPORTS[self._session]


def compile_backward(
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> CompiledBackward:
    """A context in which `backward()` and `torch.autograd.grad` of eager code run compiled.

        with kiln.compile_backward():
            loss.backward()

    The graph of autograd is read when a backward is called, and compiled once for all graphs of the same nodes, saved
    layouts and numbers. Hooks, accumulation into `.grad` and nodes that cannot be compiled (such as those of
    `autograd.Function`s) stay with torch's engine, in their places.

    Args:
        fullgraph: raise where a node, or a whole backward, stays with torch's engine.
        dynamic, mode, options: as in `kiln.compile`.

    Raises:
        KilnError: KILN50xx for a wrong argument.
    """
    chosen, _ = check_arguments(fullgraph, dynamic, mode=mode, options=options)
    switched_off(chosen)
    known = BACKWARDS.get((chosen, fullgraph))
    if known is None:
        known = BACKWARDS[chosen, fullgraph] = CompiledBackward(chosen, fullgraph)
    return known
