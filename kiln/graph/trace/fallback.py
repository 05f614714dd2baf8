"""Ops without a rule: their registered fake, else a probe of the real op, else a graph break.

    mylib.scale(x)                  has a `torch.library.register_fake`: run that on fakes
    aten.linalg_qr(x: f32[4, 4])    run the real op once on a matrix of these sizes; its results give the specs

Symbolic sizes are probed at several points (`symbolic_probe.py`), or specialised where that gives no expression. Ops
that draw random numbers are kept in order (`opaque`).
Ops with data-dependent results, and those that write to their arguments, are not probed. The latter are recorded as
calls on copies (`mutating.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import count
from typing import NoReturn, cast

import torch
from torch._library.fake_impl import set_ctx_getter
from torch._ops import OpOverload

from kiln.graph.ir.node import Node
from kiln.graph.ops.breaks import DataDependentOp, UnsupportedOp
from kiln.graph.ops.registry import Results
from kiln.graph.ops.sizes import matching_sizes
from kiln.graph.trace.large_probe import probe_with_small_sizes
from kiln.graph.trace.mode import Args, Handler, Kwargs, RecordingMode
from kiln.graph.trace.mutating import mutating_handler, registered_fake
from kiln.graph.trace.shared_memory import by_storage, refuse_shared_memory
from kiln.graph.trace.symbolic_probe import free_symbols, probe_symbols
from kiln.plan.overloads import written_arguments
from kiln.symbolic import Expr, Symbol, rel_lt
from kiln.symbolic.node import from_sym
from kiln.tensor.spec import CPU, ScalarSpec, Spec, TensorSpec

Named = tuple[tuple[str, object], ...]
Both = tuple[Args, Named]
SpecOf = Callable[[torch.Tensor], TensorSpec]

LARGEST, LARGEST_ELSEWHERE = 1 << 22, 1 << 28
"""Elements of the largest tensors that a probe makes on the CPU; accelerators fill them quickly."""

COMPOSITE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_exclude = torch._C._SetExcludeDispatchKeyGuard
AutocastCPU, AutocastCUDA = torch._C.DispatchKey.AutocastCPU, torch._C.DispatchKey.AutocastCUDA
_DATA_DEPENDENT = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
_UNTAGGED = frozenset({
    "aten::_unique", "aten::_unique2", "aten::unique_consecutive", "aten::unique_dim", "aten::bincount",
})  # fmt: skip
"""Data dependent, though some versions of torch lack the tag."""

ANY_SIZES = frozenset({"aten::_fft_r2c", "aten::_fft_c2c", "kiln_numpy::call", "kiln_numpy::padded"})
UNLIKELY = 53
"""Ops that take all sizes, so that those which data decide are probed, too; the hint of the first of these."""


def fallback_handler(op: OpOverload) -> Handler:
    """The handler of an op that no table knows; raises a `TraceBreak` where it has none."""
    name = str(op)
    if name == "aten.linalg_lstsq.default":
        return _least_squares
    if op.name().split(".")[0] in _UNTAGGED or any(tag in op.tags for tag in _DATA_DEPENDENT):
        raise DataDependentOp(op=name)
    if op._schema.is_mutable:
        functional = functional_twin(op)
        if functional is not None:
            return _writing_handler(functional)
        return mutating_handler(op)
    if any(result.alias_info is not None for result in op._schema.returns):
        raise UnsupportedOp(op=name, reason="its result shares memory with an argument and it has no rule")
    fake = registered_fake(op)
    return _fake_handler(fake) if fake is not None else _probing_handler


def written_names(op: OpOverload) -> list[str]:
    """The arguments that it writes to, in order."""
    written = written_arguments(str(op))
    return [arg.name for arg in op._schema.arguments if arg.name in written]


def functional_twin(op: OpOverload) -> OpOverload | None:
    """For `aten.put_` the overload `aten.put`: the same arguments, and the new value as the result."""
    base, overload = op.name().partition(".")[::2]
    namespace, name = base.split("::")
    packet = getattr(getattr(torch.ops, namespace), name[:-1], None) if name.endswith("_") else None
    found = getattr(packet, overload or "default", None) if written_names(op) == ["self"] else None
    return found if isinstance(found, OpOverload) and not found._schema.is_mutable else None


def fitted(mode: RecordingMode, value: Results, spec: TensorSpec) -> Node:
    """The result of an op as the new contents of a tensor of `spec`."""
    assert isinstance(value, Node)
    have = value.tensor
    if not matching_sizes(mode.emit, have.sizes, spec.sizes):
        raise RuntimeError(f"output with shape {list(spec.sizes)} doesn't match the broadcast shape {list(have.sizes)}")
    if have.dtype is not spec.dtype:
        if not torch.can_cast(have.dtype, spec.dtype):
            raise RuntimeError(f"result type {have.dtype} can't be cast to the desired output type {spec.dtype}")
        value = mode.emit.convert(value, spec.dtype)
    return value


def _writing_handler(functional: OpOverload) -> Handler:
    inner = fallback_handler(functional)

    def handler(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        refuse_shared_memory(mode, op, args[0], by_storage(mode, args[1:]))
        made = inner(mode, functional, args, kwargs)
        mode.write(args[0], fitted(mode, mode.node_of(made), mode.view_of(args[0]).spec), op)
        return args[0]

    return handler


def _fake_handler(fake: Callable[..., object]) -> Handler:
    """Runs the registered fake under the mode; the nodes that it records are dead."""

    def handler(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        def context() -> NoReturn:
            raise DataDependentOp(op=str(op))  # the context makes sizes that only the real op knows

        with mode, set_ctx_getter(context):
            made = fake(*args, **kwargs)
        return _record(mode, op, args, kwargs, _specs(op, made, lambda tensor: mode.view_of(tensor).spec))

    return handler


def _least_squares(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """Two of its drivers give residuals only where all matrices have full rank. Whether a matrix is tall decides the
    strides of the solution, and the sizes of the residuals."""
    if kwargs.get("driver") in ("gelsd", "gelss"):
        raise DataDependentOp(op=str(op))
    sizes = mode.view_of(cast(torch.Tensor, args[0])).spec.sizes
    if len(sizes) > 1 and any(isinstance(size, Expr) for size in sizes[-2:]):
        mode.symbols.decide(rel_lt(sizes[-1], sizes[-2]))
    return _probing_handler(mode, op, args, kwargs)


def _probing_handler(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    casts = mode.autocast and _calls_others(op.name())
    made = None if casts or not mode.symbolic else _probed_with_symbols(mode, op, args, kwargs)
    if made is not None:
        return _record(mode, op, args, kwargs, made)
    given = cast(Args, _hashable(mode, args)), cast(Named, _hashable(mode, tuple(sorted(kwargs.items()))))
    made = probed(op, *given)
    if casts:
        with _exclude(AutocastCPU, False), _exclude(AutocastCUDA, False):
            if _probed.__wrapped__(op, *given, torch.get_default_dtype()) != made:
                raise UnsupportedOp(op=str(op), reason="it has no rule and calls operators that autocast changes")
    return _record(mode, op, args, kwargs, made)


def _probed_with_symbols(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> Spec | None:
    """Specs with symbolic sizes; None where these must be specialised."""
    env = mode.symbols.env
    given = _symbolic(mode, args), _symbolic(mode, tuple(sorted(kwargs.items())))
    unknown = [symbol for symbol in free_symbols(given) if not env.has_hint(symbol)]
    if unknown and op.name() not in ANY_SIZES:
        return None
    made_up = {symbol: number for symbol, number in zip(unknown, count(UNLIKELY), strict=False)}

    def probe(arguments: object) -> Spec:
        return probed(op, *cast(Both, arguments))

    def hint_of(symbol: Symbol) -> int:
        return made_up[symbol] if symbol in made_up else env.hint(symbol)

    return probe_symbols(probe, given, hint_of, mode.symbols.decide, [guard.relation for guard in env.guards])


def _symbolic(mode: RecordingMode, value: object) -> object:
    """An argument with specs for tensors and expressions for symbols."""
    if isinstance(value, torch.Tensor):
        return mode.view_of(value).spec
    if isinstance(value, list | tuple):
        return tuple([_symbolic(mode, part) for part in value])
    return from_sym(value) if isinstance(value, torch.SymInt) else value


def _calls_others(name: str) -> bool:
    """Whether the op is composed of other ops, which eager's autocast sees too."""
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in COMPOSITE)


def _record(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs, spec: Spec) -> object:
    values, named = mode.arguments(args, kwargs)
    random = torch.Tag.nondeterministic_seeded in op.tags
    made = mode.emit.library(str(op), values, named, spec, opaque=random)
    if not isinstance(spec, tuple):
        return mode.wrap(made)
    parts = zip(spec, cast(Iterable[Node | None], made), strict=True)
    return tuple([part.value if isinstance(part, ScalarSpec) else mode.wrap(node) for part, node in parts])


# The arguments of a probe, hashable: specs stand for tensors.


def _hashable(mode: RecordingMode, value: object) -> object:
    if isinstance(value, torch.Tensor):
        spec = mode.view_of(value).spec
        sizes, strides = (tuple(map(mode.symbols.specialise, part)) for part in (spec.sizes, spec.strides))
        return TensorSpec(spec.dtype, sizes, strides, 0, spec.device)
    if isinstance(value, list | tuple):
        return tuple([_hashable(mode, part) for part in value])
    return mode.symbols.specialise(value) if isinstance(value, Expr | torch.SymInt) else value


def probed(op: OpOverload, args: Args, kwargs: Named) -> Spec:
    """Specs of the results of the real op on tensors of these specs."""
    return _probed(op, args, kwargs, torch.get_default_dtype())


@lru_cache(maxsize=1024)
def _probed(op: OpOverload, args: Args, kwargs: Named, default: torch.dtype) -> Spec:
    given = [leaf for leaf in (*_flat(args), *_flat(kwargs)) if isinstance(leaf, TensorSpec)]
    if not all(_is_small(spec, LARGEST) for spec in given):
        likely = probe_with_small_sizes(
            lambda few: _probed_as_they_are(op, *cast(Both, few), default), (args, kwargs), LARGEST
        )
        if likely is not None:
            return likely
    return _probed_as_they_are(op, args, kwargs, default)


def _probed_as_they_are(op: OpOverload, args: Args, kwargs: Named, default: torch.dtype) -> Spec:
    """By tensors of these sizes."""
    given = [leaf for leaf in (*_flat(args), *_flat(kwargs)) if isinstance(leaf, TensorSpec)]
    devices = {spec.device for spec in given}
    trusts = op.name().startswith(TRUSTING) and any(_is_integral(spec.dtype) for spec in given)
    found = _without_data(op, args, kwargs) if trusts and len(devices) == 1 else None
    others: list[object] = []
    if found is None:
        with torch.random.fork_rng(drawing_devices(args, kwargs)):
            integer, found = _tried(op, args, kwargs)
            others = _with_other_values(op, args, kwargs, integer)
    trained, made = found
    spec_of = partial(_spec_of_real, str(op), next(iter(devices), CPU))
    specs = _specs(op, made, spec_of)
    if specs != _specs(op, trained, spec_of):
        raise UnsupportedOp(op=str(op), reason="its result depends on whether gradients are enabled")
    if any(_specs(op, other, spec_of) != specs for other in others):
        raise DataDependentOp(op=str(op))
    return specs


def drawing_devices(args: Args, kwargs: Named) -> list[torch.device]:
    """The GPUs whose generators a call may advance: those of its tensors, or one that it is told."""
    leaves = (*_flat(args), *_flat(kwargs))
    devices = {leaf.device if isinstance(leaf, TensorSpec) else leaf for leaf in leaves}
    return [device for device in devices if isinstance(device, torch.device) and device.type == "cuda"]


def _with_other_values(op: OpOverload, args: Args, kwargs: Named, accepted: int) -> list[object]:
    """Results for other numbers in the tensors than the integer `accepted`, without what the op refuses.

    Other integers are tried on the CPU only, and not with ops that users do not call: their kernels use what other
    kernels have made as indices, unchecked.
    """
    name = op.name()
    internal = "backward" in name or (name.startswith("aten::_") and name != "aten::_pack_padded_sequence")
    given = [leaf for leaf in (*_flat(args), *_flat(kwargs)) if isinstance(leaf, TensorSpec)]
    trials: list[tuple[int, int | None]] = []
    if any(spec.dtype.is_floating_point or spec.dtype is torch.bool for spec in given):
        trials += [(accepted, 0), (accepted, 1)]
    integral = any(_is_integral(spec.dtype) for spec in given) and not internal
    if integral and all(spec.device == CPU for spec in given):
        trials += [(integer, None) for integer in OTHER_INTEGERS if integer != accepted]
    found = []
    with torch.no_grad():
        for integer, phase in trials:
            with suppress(Exception):
                found.append(_trial(op, args, kwargs, integer, phase))
    return found


def _without_data(op: OpOverload, args: Args, kwargs: Named) -> tuple[object, object] | None:
    """The results of `_tried`, on the meta device if the op runs there: no made-up number is used as an index."""
    try:
        with torch.enable_grad():
            trained = _trial(op, *_on(META, args, kwargs), 0)
        with torch.no_grad():
            return trained, _trial(op, *_on(META, args, kwargs), 0)
    except NotImplementedError:
        return None
    except Exception as problem:  # of any kind: what the real op would do with made-up pivots is not known
        raise UnsupportedOp(op=str(op), reason=f"it has no rule, and for such tensors it raised {problem}") from problem


def _tried(op: OpOverload, args: Args, kwargs: Named) -> tuple[int, tuple[object, object]]:
    """An integer that the op accepts; its results with gradients enabled, and with them disabled, as plans run it.

    All integers are 0, a valid index; if the op refuses them, 1, the first row for LAPACK. If it refuses identity
    matrices (`multinomial` where a row is zero), ones and zeros in turns. An invalid index on a GPU would end the
    process, so the CPU is tried first.
    """
    problem: Exception | str = "an error for indices 0 and 1"
    integers = integers_to_try(op, args, kwargs)
    for integer, phase in [*((integer, None) for integer in integers), *((integer, 0) for integer in integers[:1])]:
        try:
            with torch.enable_grad():
                trained = _trial(op, args, kwargs, integer, phase)
            with torch.no_grad():
                return integer, (trained, _trial(op, args, kwargs, integer, phase))
        except UnsupportedOp:
            raise
        except Exception as error:
            problem = problem if isinstance(problem, Exception) else error
    cause = problem if isinstance(problem, Exception) else None
    raise UnsupportedOp(op=str(op), reason=f"it has no rule, and probing it raised {problem}") from cause


TRUSTING = ("aten::linalg_", "aten::lu_")
"""LAPACK uses pivots unchecked. (For other ops the real kernel predicts more than the meta device.)"""
INTEGERS = (0, 1)
OTHER_INTEGERS = (0, 1, 2)
"""Lengths of sequences among them: `_pack_padded_sequence` refuses 0, and its sizes depend on the others."""
META = torch.device("meta")


def integers_to_try(op: OpOverload, args: Args, kwargs: Named) -> tuple[int, ...]:
    """Values for the integers of a probe; 0 for an op that does not run on the CPU."""
    specs = [leaf for leaf in (*_flat(args), *_flat(kwargs)) if isinstance(leaf, TensorSpec)]
    if all(spec.device.type == "cpu" for spec in specs):
        return INTEGERS
    if not any(_is_integral(spec.dtype) for spec in specs):
        return INTEGERS[:1]
    for integer in INTEGERS:
        try:
            with torch.no_grad():
                _trial(op, *_on(CPU, args, kwargs), integer)
        except NotImplementedError:
            return INTEGERS[:1]
        except Exception:  # an op may raise anything for an invalid index
            continue
        return (integer,)
    return ()


def _flat(value: object) -> list[object]:
    return [leaf for part in value for leaf in _flat(part)] if isinstance(value, tuple) else [value]


def _on(device: torch.device, args: Args, kwargs: Named) -> tuple[Args, Named]:
    """The same arguments on another device."""
    return cast(Args, _moved(device, args)), cast(Named, _moved(device, kwargs))


def _moved(device: torch.device, value: object) -> object:
    if isinstance(value, tuple):
        return tuple([_moved(device, part) for part in value])
    if isinstance(value, TensorSpec):
        return replace(value, device=device)
    return device if isinstance(value, torch.device) else value


def _is_integral(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def _trial(op: OpOverload, args: Args, kwargs: Named, integer: int, phase: int | None = None) -> object:
    given = [_materialised(str(op), value, integer, phase) for value in args]
    named = {key: _materialised(str(op), value, integer, phase) for key, value in kwargs}
    made: object = op(*given, **named)
    if not _tensors(made).isdisjoint(_tensors((*given, *named.values()))):
        raise UnsupportedOp(op=str(op), reason="it has no rule and returns an argument")
    return made


def _tensors(value: object) -> set[int]:
    """All tensors in arguments or results, by identity."""
    if isinstance(value, list | tuple):
        return set().union(*map(_tensors, value))
    return {id(value)} if isinstance(value, torch.Tensor) else set()


def _spec_of_real(op: str, device: torch.device, x: torch.Tensor) -> TensorSpec:
    """`device`: of the arguments, for results on the meta device."""
    if x.layout is not torch.strided or x.is_quantized:
        raise UnsupportedOp(
            op=op, reason=f"it has no rule and its result has the layout {x.layout} and dtype {x.dtype}"
        )
    return TensorSpec(x.dtype, tuple(x.shape), tuple(x.stride()), 0, device if x.is_meta else x.device)


def _materialised(op: str, value: object, integer: int, phase: int | None) -> object:
    """Tensors for specs, with values that most ops accept: identity matrices in floating point, else `integer`.

    With a `phase`, floating-point and boolean tensors hold 1 and 0 in turns, beginning with 1 - `phase`.
    """
    if isinstance(value, tuple):
        return [_materialised(op, part, integer, phase) for part in value]
    if not isinstance(value, TensorSpec):
        return value
    if not _is_small(value, LARGEST if value.device.type == "cpu" else LARGEST_ELSEWHERE):
        raise UnsupportedOp(op=op, reason=f"it has no rule, and {value} is too large for a probe")
    made = torch.empty_strided(value.sizes, value.strides, dtype=value.dtype, device=value.device)  # type: ignore[arg-type]
    made.fill_(integer if _is_integral(value.dtype) else 0)
    if phase is not None and (value.dtype.is_floating_point or value.dtype is torch.bool):
        ones = (torch.arange(made.numel(), device=made.device) + phase) % 2 == 0
        return made.copy_(ones.view(made.shape))
    if value.dtype.is_floating_point and value.rank >= 2:
        made.diagonal(dim1=-2, dim2=-1).fill_(1)
    elif value.dtype.is_floating_point:
        made.fill_(0.5)
    return made


def _is_small(spec: TensorSpec, most: int) -> bool:
    number = spec.numel()
    return isinstance(number, int) and number <= most


def _part_spec(part: torch.Tensor | int | None, spec_of: SpecOf) -> TensorSpec | ScalarSpec | None:
    """The spec of one of several results; integers depend on sizes only."""
    if part is None:
        return None
    return ScalarSpec(int, part) if isinstance(part, int) else spec_of(part)


def _specs(op: OpOverload, made: object, spec_of: SpecOf) -> Spec:
    if isinstance(made, torch.Tensor):
        return spec_of(made)
    if isinstance(made, list | tuple) and all(part is None or isinstance(part, torch.Tensor | int) for part in made):
        return tuple([_part_spec(part, spec_of) for part in made])
    raise UnsupportedOp(op=str(op), reason="it has no rule and returns something that is not a tensor")
