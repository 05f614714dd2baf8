"""The log of torch calls: what a region did, in order, as the user wrote it.

    0  function  torch.abs        (a,)            model.py:3
    1  function  operator.add     (%0, 1)         model.py:3
    2  setstate  grad_enabled     (False,)        model.py:4

User backends get it as an fx graph; eager replay and the copies of equal layers are made from it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Literal, final

import torch
import torch.fx

from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.gradients import accumulated_gradients
from kiln.support.location import Location
from kiln.support.records import dataclass
from kiln.symbolic import Expr
from kiln.symbolic.values import Real

CallKind = Literal["function", "method", "getattr", "setstate"]
Target = Callable[..., object] | str
OperatorKind = Literal["cond", "while_loop", "scan"]
NOWHERE = Location("<unknown>", 0)


@final
@dataclass(frozen=True, eq=False)
class Configuration:
    """An argument that is an object of the program."""

    value: object


@final
@dataclass(frozen=True, eq=False)
class RegisterHook:
    """The target of a call that registers a hook: `(tensor, *captured)`, what the hook reads besides the gradient.

    `on_fake` records what it does to the gradient of a fake, and lives as long as the recording; `make(*captured)` is
    the program's function.
    """

    on_fake: weakref.ref[Callable[[FakeTensor], FakeTensor | None]]
    make: Callable[..., Callable[..., object]]
    __name__ = "register_hook"

    def __call__(self, tensor: torch.Tensor, *captured: object) -> None:
        hook = weakref.proxy(self.on_fake()) if type(tensor) is FakeTensor else self.make(*captured)
        tensor.register_hook(hook)  # type: ignore[no-untyped-call]


@final
@dataclass(frozen=True, eq=False)
class NestedLog:
    """The calls of a branch or of the body of a loop, on `arguments`: its operands, then what it reads from outside.

    `module`: the same as an fx graph, made once.
    """

    calls: tuple[TorchCall, ...]
    arguments: tuple[FakeTensor, ...]
    outputs: tuple[FakeTensor, ...]
    module: Callable[[], torch.fx.GraphModule]


@final
@dataclass(frozen=True, eq=False)
class ControlFlow:
    """The target of a control flow operator; each nested log takes its arguments, but for the condition of `cond`.

    cond          (true, false)     (condition, *captured)
    while_loop    (test, body)      (*carried, *captured)
    scan          (body,)           (*carried, *stacked rows, *captured)     `map` is a scan without carried values

    `carried` and `rows` count these arguments. `lets_gradients_be_absent`: what one side of a `cond` does not use has
    no gradient, as in eager's branch, rather than zeros. `numbers`: symbolic numbers from outside that the logs use,
    which fx graphs of the logs take last. `changes`: which captured arguments the branches of a `cond` may change in
    place. `same_sizes`: Python needs the sizes of the results of a `cond`, so that both branches have to have the same.
    """

    kind: OperatorKind
    logs: tuple[NestedLog, ...]
    run: Callable[..., tuple[torch.Tensor, ...]]
    carried: int = 0
    rows: int = 0
    lets_gradients_be_absent: bool = False
    numbers: tuple[Expr | Real, ...] = ()
    changes: tuple[int, ...] = ()
    same_sizes: bool = False

    @property
    def __name__(self) -> str:
        return self.kind

    def __call__(self, *args: torch.Tensor | float) -> tuple[torch.Tensor, ...]:
        """Run it on real tensors and numbers."""
        return self.run(self.carried, self.rows, *[log.module() for log in self.logs], *args)


@final
@dataclass(frozen=True, eq=False)
class PushSavedHooks:
    """The target of a call that enters `saved_tensors_hooks`; its arguments are what the two functions capture."""

    make_pack: Callable[..., Callable[..., object]]
    make_unpack: Callable[..., Callable[..., torch.Tensor]]
    __name__ = "push_saved_tensors_hooks"

    def __call__(self, pack: Sequence[object], unpack: Sequence[object]) -> None:
        torch._C._autograd._push_saved_tensors_default_hooks(self.make_pack(*pack), self.make_unpack(*unpack))


@final
@dataclass(frozen=True, eq=False)
class PopSavedHooks:
    __name__ = "pop_saved_tensors_hooks"

    def __call__(self) -> None:
        torch._C._autograd._pop_saved_tensors_default_hooks()


@final
@dataclass(frozen=True, slots=True)
class TorchCall:
    """A call. Arguments and result hold the fake tensors themselves, in their containers.

    `effects`: it changed memory, metadata or autograd state of existing tensors.
    """

    number: int
    kind: CallKind
    target: Target
    args: tuple[object, ...]
    kwargs: dict[str, object]
    result: object
    location: Location
    stack: tuple[Location, ...]
    effects: bool = False
    nodes: tuple[int, int] = (0, 0)
    """The range of its nodes among those of the recording."""

    @property
    def name(self) -> str:
        return target_name(self.target)


def target_name(target: Target) -> str:
    """`torch.abs`, `operator.add`, `Tensor.sum`: as a user would write it."""
    if isinstance(target, str):
        return f"Tensor.{target}"
    if isinstance(target, ControlFlow):
        return f"torch.{target.kind}"
    if target is accumulated_gradients:
        return "Tensor.backward"
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or repr(target)
    module = _SHORT.get(module, module)
    if name.startswith("_VariableFunctionsClass."):
        module, name = "torch", name.split(".", 1)[1]
    return f"{module}.{name}" if module and module != "builtins" else name


_SHORT = {"_operator": "operator", "torch._C._nn": "torch.nn.functional"}


def leaves(value: object) -> list[object]:
    """What nested containers contain."""
    if isinstance(value, dict):
        value = list(value.values())
    elif isinstance(value, slice):
        value = [value.start, value.stop, value.step]
    elif not isinstance(value, list | tuple):
        return [value]
    found: list[object] = []
    for item in value:
        if isinstance(item, CONTAINERS):
            found += leaves(item)
        else:
            found.append(item)
    return found


CONTAINERS = (list, tuple, dict, slice)
