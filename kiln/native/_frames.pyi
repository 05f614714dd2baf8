"""Dispatchers, guard trees and the frame hook (csrc/frames)."""

from collections.abc import Callable, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any, final

import torch

usable: bool
"""Whether the self-test of the import found torch's objects as expected; `problem` says what not."""
problem: str

def global_state() -> int:
    """Modes and defaults of torch as one word; its layout is `kiln.runtime.guards.state`."""

def watch_cuda_device() -> None:
    """The word of global state tells the current CUDA device from now on; CUDA must be initialised."""

def scalar_type(tensor: torch.Tensor, /) -> int:
    """The number of a tensor's dtype in c10."""

def set_enabled(flag: bool, /) -> bool:
    """Whether dispatchers called by this thread dispatch (else they call the originals); returns what was."""

SKIP_ALWAYS: object
"""Answer of a hook's callback: do not ask for this code object again."""
hook_supported: bool
"""Whether this CPython has a table for the frame hook."""

FrameCallback = Callable[[CodeType, dict[str, Any], dict[str, Any], tuple[CellType, ...] | None, FunctionType], Any]

def hook_push(callback: FrameCallback, /) -> None:
    """Catches every plain function that this thread starts, until `hook_pop`; pushes nest.

    `callback(code, arguments by name, globals, closure, function)` answers with another code object (same arguments
    and free variables; it takes the frame over), a callable (gets every slot), None (runs as it is) or `SKIP_ALWAYS`.
    It is not asked where `set_code_entries` has published a variant that holds.
    """

def hook_pop() -> None:
    """Ends the last `hook_push` of this thread; the hook is removed with the last of all threads."""

def hook_wanted() -> int:
    """How many pushes of all threads have not ended."""

def set_code_entries(code: CodeType, entries: Sequence[Any] | object, /) -> None:
    """Publishes the variants of a code object, whole: entries (their callable may be code), code objects,
    callables, or `SKIP_ALWAYS`."""

def code_entries(code: CodeType, /) -> tuple[Any, ...] | object:
    """What was published for a code object."""

def forget_codes() -> None:
    """Drops what is known of all code objects."""

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
        """(index of a guard that fails, text of the value it saw), or None where all hold."""

    def counts(self) -> dict[str, int]:
        """How often the tree was checked in full, replayed, and a changed dict looked into again."""

    @property
    def bindings(self) -> tuple[Any, ...] | None:
        """What the last successful check collected. Another call may check the tree at any time: see `BoundCall`."""

@final
class Entry:
    """One compiled variant: while `tree` holds, `callable` gets every slot of the function, positionally."""

    def __new__(cls, tree: GuardTree | None, callable: Callable[..., Any], info: object = None) -> Entry: ...
    tree: GuardTree | None
    callable: Callable[..., Any]
    info: Any
    hits: int

@final
class BoundCall:
    """Calls `target(*args, *tree.bindings)`, or `target(*args, tree.bindings)` where not `spread`.

    As the callable of an `Entry` with the same tree it runs right after the check: the bindings are this call's.
    """

    def __new__(cls, tree: GuardTree, target: Callable[..., Any], spread: bool = True) -> BoundCall: ...
    def __call__(self, *args: Any) -> Any: ...
    tree: GuardTree
    target: Callable[..., Any]

@final
class Dispatcher:
    """Stands for `function`; calls the first entry whose guards hold.

    Where none holds, `miss(dispatcher, locals)` is called with the bound arguments by name. It answers with an
    `Entry` (checked, then called; the function where it does not hold), another callable (called with every slot),
    or None (the function is called). While it runs, the dispatchers of this thread call their functions, and
    other threads that miss here call the function too.
    """

    def __new__(cls, function: FunctionType, miss: Callable[[Dispatcher, dict[str, Any]], Any]) -> Dispatcher: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: object, owner: type | None = None) -> Any: ...
    def set_entries(self, entries: Sequence[Entry], /) -> None:
        """Replaces all entries at once."""
    @property
    def function(self) -> FunctionType: ...
    @property
    def __wrapped__(self) -> FunctionType: ...
    miss: Callable[[Dispatcher, dict[str, Any]], Any]
    entries: tuple[Entry, ...]
    misses: int
    stale: int
    __dict__: dict[str, Any]
