"""Ops without a rule: their registered fake, else a probe of the real op, else a graph break.

    mylib.scale(x)                  `torch.library.register_fake` was called for it: run that on fakes
    aten.linalg_qr(x: f32[4, 4])    the real op runs once on a matrix of these sizes; its results tell the specs

A probe specialises symbolic sizes (each becomes a guard). Ops that draw random numbers are kept in order (`opaque`);
ops with data-dependent results, and those that write to their arguments, are not guessed at.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch._library.simple_registry import singleton as registered_ops
from torch._ops import OpOverload

from kiln.graph.ops.breaks import DataDependentOp, UnsupportedMutation, UnsupportedOp
from kiln.graph.trace.mode import Handler, RecordingMode
from kiln.symbolic import Expr
from kiln.tensor.spec import CPU, ScalarSpec, Spec, TensorSpec

LARGEST = {"cpu": 1 << 22}
LARGEST_ELSEWHERE = 1 << 28
"""Elements of the largest tensors that a probe makes; an accelerator fills them in no time."""

COMPOSITE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_exclude = torch._C._SetExcludeDispatchKeyGuard
AutocastCPU, AutocastCUDA = torch._C.DispatchKey.AutocastCPU, torch._C.DispatchKey.AutocastCUDA
_DATA_DEPENDENT = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
_UNTAGGED = frozenset({
    "aten::_unique", "aten::_unique2", "aten::unique_consecutive", "aten::unique_dim", "aten::bincount",
})  # fmt: skip
"""Some versions of torch lack their tags."""


def fallback_handler(op: OpOverload) -> Handler:
    """The handler of an op that no table knows; raises a `TraceBreak` where nothing can be predicted."""
    name = str(op)
    if op.name().split(".")[0] in _UNTAGGED or any(tag in op.tags for tag in _DATA_DEPENDENT):
        raise DataDependentOp(op=name)
    if op._schema.is_mutable:
        functional = functional_twin(op)
        if functional is not None:
            return _writing_handler(functional)
        raise UnsupportedMutation(op=name, reason="it writes to its arguments, and has no rule")
    if any(one.alias_info is not None for one in op._schema.returns):
        raise UnsupportedOp(op=name, reason="its result shares memory with an argument, and it has no rule")
    entry = registered_ops.find(op.name().split(".")[0])
    kernel = entry.fake_impl.kernel if entry is not None else None
    return _fake_handler(kernel) if kernel is not None else _probing_handler


def functional_twin(op: OpOverload) -> OpOverload | None:
    """Of `aten.put_` the overload `aten.put`: the same arguments, and the new value as the result."""
    base, overload = op.name().partition(".")[::2]
    namespace, name = base.split("::")
    written = [one.name for one in op._schema.arguments if one.alias_info is not None and one.alias_info.is_write]
    packet = getattr(getattr(torch.ops, namespace), name[:-1], None) if name.endswith("_") else None
    found = getattr(packet, overload or "default", None) if packet is not None and written == ["self"] else None
    return found if isinstance(found, OpOverload) and not found._schema.is_mutable else None


def _writing_handler(functional: OpOverload) -> Handler:
    inner = fallback_handler(functional)

    def handler(mode: RecordingMode, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = inner(mode, functional, args, kwargs)
        mode.write(args[0], mode.value(made), op)
        return args[0]

    return handler


def _fake_handler(kernel: Any) -> Handler:
    """Runs the registered fake under the mode; what it records is dead code."""

    def handler(mode: RecordingMode, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with mode:
            made = kernel.func(*args, **kwargs) if hasattr(kernel, "func") else kernel(*args, **kwargs)
        return _record(mode, op, args, kwargs, _specs(op, made, lambda one: mode.view_of(one).spec))

    return handler


def _probing_handler(mode: RecordingMode, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    specialise = mode.symbols.specialise
    given = _frozen(specialise, mode, args), _frozen(specialise, mode, tuple(sorted(kwargs.items())))
    made = probed(op, *given)
    if mode.autocast and _calls_others(op.name()):
        with _exclude(AutocastCPU, False), _exclude(AutocastCUDA, False):
            if probed.__wrapped__(op, *given) != made:
                raise UnsupportedOp(op=str(op), reason="it has no rule, and calls operators that autocast changes")
    return _record(mode, op, args, kwargs, made)


def _calls_others(name: str) -> bool:
    """Whether the op is one kernel for all devices, made of other ops, which eager's autocast sees too."""
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in COMPOSITE)


def _record(mode: RecordingMode, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], spec: Spec) -> Any:
    values = [mode.value(one) for one in args]
    named = {key: mode.value(one) for key, one in kwargs.items()}
    random = torch.Tag.nondeterministic_seeded in op.tags
    made = mode.emit.library(str(op), values, named, spec, random=random)
    if not isinstance(spec, tuple):
        return mode.wrap(made)
    parts = zip(spec, made, strict=True)
    return tuple([part.value if isinstance(part, ScalarSpec) else mode.wrap(node) for part, node in parts])


# What a probe is asked, hashable: specs stand for tensors.


def _frozen(specialise: Any, mode: RecordingMode, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        spec = mode.view_of(value).spec
        numbers = [tuple([specialise(one) for one in part]) for part in (spec.sizes, spec.strides)]
        return TensorSpec(spec.dtype, numbers[0], numbers[1], 0, spec.device)
    if isinstance(value, list | tuple):
        return tuple([_frozen(specialise, mode, one) for one in value])
    return specialise(value) if isinstance(value, Expr | torch.SymInt) else value


@lru_cache(maxsize=1024)
def probed(op: OpOverload, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> Spec:
    """Specs of the results of the real op on tensors of these specs."""
    given = [one for one in (*_flat(args), *_flat(kwargs)) if isinstance(one, TensorSpec)]
    devices = {one.device for one in given}
    trusts = op.name().startswith(TRUSTING) and any(_is_whole(one.dtype) for one in given)
    found = _without_data(op, args, kwargs) if trusts and len(devices) == 1 else None
    if found is None:
        with torch.random.fork_rng([one for one in devices if one.type == "cuda"]):
            found = _tried(op, args, kwargs)
    trained, made = found
    spec_of = partial(_spec_of_real, str(op), next(iter(devices), CPU))
    specs = _specs(op, made, spec_of)
    if specs != _specs(op, trained, spec_of):
        raise UnsupportedOp(op=str(op), reason="what it returns depends on whether gradients are on")
    return specs


def _without_data(op: OpOverload, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> Any:
    """What `_tried` returns, of the meta device, where the op runs there: nothing is indexed by a made-up number."""
    try:
        with torch.enable_grad():
            trained = _trial(op, _on(META, args), _on(META, kwargs), 0)
        with torch.no_grad():
            return trained, _trial(op, _on(META, args), _on(META, kwargs), 0)
    except Exception:  # of whatever kind: the real op says more
        return None


def _tried(op: OpOverload, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> tuple[Any, Any]:
    """What the op returns while gradients are on, and while they are off, as plans run it.

    Integers are all 0, an index that there is; where the op refuses these, 1: the first row, as LAPACK counts. On a
    GPU an index that there is not would be the end of the process, so the CPU is asked first which of them it takes.
    """
    problem: Exception | str = "an error for the indices 0 and 1"
    for integer in integers_to_try(op, args, kwargs):
        try:
            with torch.enable_grad():
                trained = _trial(op, args, kwargs, integer)
            with torch.no_grad():
                return trained, _trial(op, args, kwargs, integer)
        except UnsupportedOp:
            raise
        except Exception as error:
            problem = problem if isinstance(problem, Exception) else error
    cause = problem if isinstance(problem, Exception) else None
    raise UnsupportedOp(op=str(op), reason=f"it has no rule, and a trial of it raised {problem}") from cause


TRUSTING = ("aten::linalg_", "aten::lu_")
"""LAPACK does not look whether pivots are right before it uses them. (Elsewhere the real op says more than meta.)"""
INTEGERS = (0, 1)
META = torch.device("meta")


def integers_to_try(op: OpOverload, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> tuple[int, ...]:
    """What integers of a trial may be. An op that does not run on the CPU is given 0 elsewhere."""
    specs = [one for one in (*_flat(args), *_flat(kwargs)) if isinstance(one, TensorSpec)]
    if all(one.device.type == "cpu" for one in specs):
        return INTEGERS
    if not any(_is_whole(one.dtype) for one in specs):
        return INTEGERS[:1]
    for integer in INTEGERS:
        try:
            with torch.no_grad():
                _trial(op, _on(CPU, args), _on(CPU, kwargs), integer)
        except NotImplementedError:
            return INTEGERS[:1]
        except Exception:  # it refuses these; what an op raises for an index is its own affair
            continue
        return (integer,)
    return ()


def _flat(value: Any) -> list[Any]:
    return [leaf for one in value for leaf in _flat(one)] if isinstance(value, tuple) else [value]


def _on(device: torch.device, value: Any) -> Any:
    """The same arguments on another device."""
    if isinstance(value, tuple):
        return tuple([_on(device, one) for one in value])
    if isinstance(value, TensorSpec):
        return replace(value, device=device)
    return device if isinstance(value, torch.device) else value


def _is_whole(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def _trial(op: OpOverload, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], integer: int) -> Any:
    given = _thawed(str(op), args, integer)
    named = {key: _thawed(str(op), value, integer) for key, value in kwargs}
    made = op(*given, **named)
    if not _tensors(made).isdisjoint(_tensors((*given, *named.values()))):
        raise UnsupportedOp(op=str(op), reason="it has no rule, and its result is an argument")
    return made


def _tensors(value: Any) -> set[int]:
    """The tensors of arguments, or of all results, by identity."""
    if isinstance(value, list | tuple):
        return set().union(*map(_tensors, value))
    return {id(value)} if isinstance(value, torch.Tensor) else set()


def _spec_of_real(op: str, device: torch.device, x: torch.Tensor) -> TensorSpec:
    """`device`: that of the arguments, for a result without data."""
    if x.layout is not torch.strided or x.is_quantized:
        raise UnsupportedOp(op=op, reason=f"it has no rule, and its result is {x.layout} of {x.dtype}")
    return TensorSpec(x.dtype, tuple(x.shape), tuple(x.stride()), 0, device if x.is_meta else x.device)


def _thawed(op: str, value: Any, integer: int) -> Any:
    """Tensors for specs, with values that few ops refuse: an identity in floating point, else `integer`."""
    if isinstance(value, tuple):
        return [_thawed(op, one, integer) for one in value]
    if not isinstance(value, TensorSpec):
        return value
    if not _is_small(value):
        raise UnsupportedOp(op=op, reason=f"it has no rule, and a tensor of {value} is too large for a trial")
    made = torch.empty_strided(value.sizes, value.strides, dtype=value.dtype, device=value.device)  # type: ignore[arg-type]
    made.fill_(integer if _is_whole(value.dtype) else 0)
    if value.dtype.is_floating_point and value.rank >= 2:
        made.diagonal(dim1=-2, dim2=-1).fill_(1)
    elif value.dtype.is_floating_point:
        made.fill_(0.5)
    return made


def _is_small(spec: TensorSpec) -> bool:
    number = spec.numel()
    return isinstance(number, int) and number <= LARGEST.get(spec.device.type, LARGEST_ELSEWHERE)


def _part_spec(part: Any, spec_of: Any) -> TensorSpec | ScalarSpec | None:
    """Of one of several results; a number depends on sizes only, and is known."""
    if part is None:
        return None
    return ScalarSpec(int, part) if isinstance(part, int) else spec_of(part)  # type: ignore[no-any-return]


def _specs(op: OpOverload, made: Any, spec_of: Any) -> Spec:
    if isinstance(made, torch.Tensor):
        spec: TensorSpec = spec_of(made)
        return spec
    if isinstance(made, list | tuple) and all(one is None or isinstance(one, torch.Tensor | int) for one in made):
        return tuple([_part_spec(one, spec_of) for one in made])
    raise UnsupportedOp(op=str(op), reason="it has no rule, and returns something that is not a tensor")
