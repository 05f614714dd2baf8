"""Dispatchers, guard trees and the frame hook (csrc/frames)."""

from collections.abc import Callable, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any, TypeVar, final

G = TypeVar("G", bound=tuple[Any, ...])

usable: bool
"""Whether the self-test at import found torch's objects as expected; `problem` says what differs."""
problem: str

def global_state() -> int:
    """Modes and defaults of torch as one word; `kiln.runtime.guards.state` has its layout."""

def watch_cuda_device() -> None:
    """The word of global state holds the current CUDA device from now on; CUDA must be initialised."""

def set_enabled(flag: bool, /) -> bool:
    """Let dispatchers called by this thread dispatch, or call the originals; returns the old value."""

def stance() -> str:
    """The stance of `torch.compiler.set_stance`; under "force_eager" every dispatcher calls its function."""

SKIP_ALWAYS: object
"""Answer of a hook's callback: never call it for this code object again."""
hook_supported: bool
"""Whether this CPython has a table for the frame hook."""

FrameCallback = Callable[[CodeType, dict[str, Any], dict[str, Any], tuple[CellType, ...] | None, FunctionType], Any]

def hook_call(callback: FrameCallback, function: Callable[..., object], /, *arguments: object) -> object:
    """Calls the function; every plain function that this thread starts meanwhile is caught. Calls nest.

    `callback(code, arguments by name, globals, closure, function)` returns a callable (it gets every slot, and runs
    without the hook), None (the frame runs unchanged) or `SKIP_ALWAYS`.
    """

def hook_wanted() -> int:
    """How many calls of `hook_call`, of all threads, have not ended."""

def forget_codes() -> None:
    """Asks about every code object again, those of `SKIP_ALWAYS` too."""

@final
class GuardTree:
    """The guards of one variant; made by `kiln.runtime.guards.build_tree`."""

    def __new__(
        cls,
        nodes: list[tuple[int, int, int, int, int, object, int]],
        checks: list[tuple[int, int, int, object]],
        collect: tuple[int, ...],
    ) -> GuardTree: ...
    def check(
        self, locals: Sequence[object], globals: dict[str, Any] | None = None, closure: tuple[Any, ...] | None = None
    ) -> bool:
        """Whether all guards hold of the arguments in slot order."""

    def explain(
        self, locals: Sequence[object], globals: dict[str, Any] | None = None, closure: tuple[Any, ...] | None = None
    ) -> tuple[int, str] | None:
        """(index of a guard that fails, text of the value it saw), or None if all hold."""

    def counts(self) -> dict[str, int]:
        """How often the tree was checked in full and replayed, and a changed dict revalidated."""

    @property
    def bindings(self) -> tuple[Any, ...] | None:
        """The objects collected by the last successful check, until a `BoundCall` takes them."""

@final
class GuardPaths:
    """Numbers of the places that guards look at; see `kiln.runtime.guards.paths`."""

    def __new__(cls, forms: dict[Any, Any]) -> GuardPaths: ...
    def number(self, source: object, /) -> int:
        """Equal paths have equal numbers."""

    def needed(self, guards: list[G], kinds: dict[Any, tuple[int, int, bool, bool, bool, bool]], /) -> list[G]:
        """The guards that no other guard implies, each once, in order."""

    def rows(
        self, checks: list[tuple[int, int, int, object]], /
    ) -> tuple[list[tuple[int, int, int, int, int, object, int]], list[tuple[int, int, int, object]], list[int]]:
        """Nodes in preorder, their checks, and the node of each path. `checks` name paths instead of nodes."""

@final
class Entry:
    """A compiled variant: if `tree` holds, `callable` gets every slot of the function, positionally."""

    def __new__(cls, tree: GuardTree | None, callable: Callable[..., Any], info: object = None) -> Entry: ...
    tree: GuardTree | None
    callable: Callable[..., Any]
    info: Any
    hits: int
    def sample_after(self, calls: int, callable: Callable[..., Any], /) -> None:
        """Once, the call that comes as number `calls` from now goes to `callable` instead."""

@final
class BoundCall:
    """Calls `target(*args, tree.bindings)`, and drops the bindings.

    As the callable of an `Entry` with the same tree it runs right after the check, so the bindings are this call's.
    """

    def __new__(cls, tree: GuardTree, target: Callable[..., Any]) -> BoundCall: ...
    def __call__(self, *args: Any) -> Any: ...
    tree: GuardTree
    target: Callable[..., Any]

@final
class TailCall:
    """The call that ends a resume function, as data: it returns this, and the first caller makes the call.

    loop body breaks        resume_1(...)  ->  TailCall(resume_2, ...)  ->  TailCall(resume_1, ...)  ->  result
                            all called by one `Driven`, so Python's stack does not grow with the breaks
    """

    def __new__(cls, function: Callable[..., object], *arguments: object) -> TailCall: ...

@final
class Driven:
    """Calls a resume function, and those that follow it, with the items of a list, which it empties.

    The frames of the resume functions are the only owners of their arguments: what they drop is freed at once.
    """

    def __new__(cls, function: Callable[..., object]) -> Driven: ...
    def __call__(self, arguments: list[Any], /) -> Any: ...
    function: Callable[..., object]

@final
class ExpectedToRaise:
    """Calls `original`, which raises; if it returns after all, `on_return` is called."""

    def __new__(cls, original: Callable[..., object], on_return: Callable[[], object]) -> ExpectedToRaise: ...
    def __call__(self, *slots: object) -> Any: ...

@final
class Dispatcher:
    """Takes the place of `function` and calls the first entry whose guards hold.

    If none holds, it calls `miss(dispatcher, locals)` with the bound arguments by name, which returns an `Entry`
    (checked, then called), another callable (called with every slot), or None. If the entry does not hold or there is
    none, the function is called. Meanwhile the dispatchers of this thread call their functions, and other threads that
    miss here call the function too. With `moved` it stands for calls of objects: where the class of the first argument
    has another `__call__`, `moved` gets the arguments.
    """

    def __new__(cls, function: FunctionType, miss: Callable[[Dispatcher, dict[str, Any]], Any]) -> Dispatcher: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: object, owner: type | None = None) -> Any: ...
    moved: Callable[..., Any] | None
    def set_entries(self, entries: Sequence[Entry], /) -> None:
        """Replaces all entries atomically."""
    def __copy__(self) -> Dispatcher:
        """Itself, as a function."""
    def __deepcopy__(self, memo: dict[int, object], /) -> Dispatcher:
        """Itself, as a function."""
    @property
    def function(self) -> FunctionType: ...
    @property
    def __wrapped__(self) -> FunctionType: ...
    miss: Callable[[Dispatcher, dict[str, Any]], Any]
    entries: tuple[Entry, ...]
    misses: int
    stale: int
    __dict__: dict[str, Any]
