"""Operators of the program that write to their arguments.

    mylib::add_into(Tensor(a!) out, Tensor x) -> ()
    add_into(out, x)        =>      %2 = opaque mylib.add_into.default(%0, %1)      works on a copy of %0
                                    %3 = item(%2, index=0)                          which is the new value of `out`

The node has the results of the operator (None for those that are arguments), then the new values of the arguments that
it writes to. The operator needs no fake if it returns nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._library.simple_registry import singleton as registered_ops
from torch._ops import OpOverload

from kiln.graph.ops.breaks import UnsupportedMutation, UnsupportedOp
from kiln.graph.trace.mode import Args, Handler, Kwargs, RecordingMode
from kiln.graph.trace.shared_memory import tensors_in
from kiln.plan.overloads import written_arguments
from kiln.tensor.spec import Spec, TensorSpec

OWN_FAKES: dict[str, Callable[..., object]] = {}
"""Of Kiln's own operators. `torch.library.register_fake` would look for the source of each in all modules."""


def registered_fake(op: OpOverload) -> Callable[..., object] | None:
    """What `torch.library.register_fake` registered for it."""
    name = op.name().split(".")[0]
    if (own := OWN_FAKES.get(name)) is not None:
        return own
    entry = registered_ops.find(name)
    kernel = entry.fake_impl.kernel if entry is not None else None
    return None if kernel is None else getattr(kernel, "func", kernel)


def mutating_handler(op: OpOverload) -> Handler:
    """Raises UnsupportedMutation where nothing says what else the operator returns."""
    name, written = str(op), written_arguments(str(op))
    fake, schema = registered_fake(op), op._schema
    if op.namespace == "aten" or (fake is None and any(result.alias_info is None for result in schema.returns)):
        raise UnsupportedMutation(op=name, reason="it writes to its arguments and has no rule")

    def handler(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        given: list[tuple[int | str, object]] = [*enumerate(args), *kwargs.items()]
        targets = list(tensors_in([value for place, value in given if place in written]))
        refuse_shared(mode, op, targets, tensors_in([value for _, value in given]))
        values, named = mode.arguments(args, kwargs)
        made: object = None
        if fake is not None:
            with mode:
                made = fake(*args, **kwargs)
        results = made if isinstance(made, tuple) else () if made is None else (made,)
        aliases = [result.alias_info is not None for result in schema.returns]
        specs: list[Spec | None] = [
            None if alias else result_spec(mode, op, results[number]) for number, alias in enumerate(aliases)
        ]
        specs += [copy_spec(mode, target) for target in targets]
        parts = mode.emit.library(name, values, named, tuple(specs), opaque=True)  # type: ignore[arg-type]
        for target, part in zip(targets, parts[len(aliases) :], strict=True):
            assert part is not None
            mode.write(target, part, op)
        returned = [
            aliased(op, number, args, kwargs) if alias else mode.wrap(parts[number])
            for number, alias in enumerate(aliases)
        ]
        return None if not returned else returned[0] if len(returned) == 1 else tuple(returned)

    return handler


def refuse_shared(mode: RecordingMode, op: OpOverload, targets: list[torch.Tensor], tensors: object) -> None:
    """Break where the operator could read what it writes through another argument."""
    storages = [mode.view_of(tensor).storage for tensor in tensors]  # type: ignore[attr-defined]
    if any(storages.count(mode.view_of(target).storage) > 1 for target in targets):
        raise UnsupportedMutation(op=str(op), reason="an argument that it writes to shares memory with another one")


def copy_spec(mode: RecordingMode, target: torch.Tensor) -> TensorSpec:
    """The layout of the copy that it writes to."""
    spec = mode.view_of(target).spec
    return spec.with_view(spec.sizes, mode.emit.preserved_strides(spec), 0)


def result_spec(mode: RecordingMode, op: OpOverload, result: object) -> Spec | None:
    if result is None:
        return None
    if not isinstance(result, torch.Tensor):
        raise UnsupportedOp(op=str(op), reason="its fake returns something that is not a tensor")
    return mode.view_of(result).spec


def aliased(op: OpOverload, number: int, args: Args, kwargs: Kwargs) -> object:
    """The argument that result `number` is."""
    wanted = op._schema.returns[number].alias_info
    for place, arg in enumerate(op._schema.arguments):
        if wanted and arg.alias_info is not None and arg.alias_info.before_set == wanted.before_set:
            return args[place] if place < len(args) else kwargs[arg.name]
    raise UnsupportedMutation(op=str(op), reason="its result shares memory with an argument")
