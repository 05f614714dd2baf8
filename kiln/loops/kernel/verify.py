"""The verifier of kernels: what code generation may rely on."""

from __future__ import annotations

from kiln.loops.body.analyses import accesses
from kiln.loops.body.indexing import Axis, symbols_of
from kiln.loops.body.verify import InvalidLoops, Problems, Ranks, verify_body
from kiln.loops.kernel.analyses import kernel_symbols, phase_writes
from kiln.loops.kernel.kernel import Accumulate, KernelIR, Phase
from kiln.loops.kernel.mapped import MappedKernel
from kiln.loops.kernel.text import kernel_text, mapped_kernel_text
from kiln.loops.program.nodes import ReduceOp
from kiln.symbolic import Symbol


def verify_kernel(kernel: KernelIR, bound: frozenset[Symbol] = frozenset()) -> None:
    """Raise InvalidLoops unless, with the symbols of `bound` given by something around the kernel,

    K1  names of parameters and locals differ, and written parameters are parameters;
    K2  effects write locals or written parameters, with one index per dimension, and give a result of the body;
    K3  an accumulator reduces axes of its phase and is indexed by others; a number or a row over kept axes;
    K4  a phase loads no local before something wrote it, and nothing that its own effects store
        (an accumulator is complete only in later phases);
    K5  every size symbol that is used (in a size, a stride, an effect) is an argument;
    K6  axes of units and of one phase have different symbols, `vector` is a position in them;
    K7  a sum of exp stands beside a maximum, in accumulators that nothing else feeds;
    and every body is right (B1 to B6).
    """
    for rule, problem in _kernel_problems(kernel):
        raise InvalidLoops(rule=rule, problem=problem, excerpt=kernel_text(kernel))
    ranks = _ranks(kernel)
    sizes = symbols_of(*kernel.ints) | {axis.symbol for axis in kernel.units} | bound
    for phase in kernel.phases:
        scope = sizes | {axis.symbol for axis in phase.axes} | _size_symbols_of(kernel)
        verify_body(phase.body, scope, ranks, lambda: kernel_text(kernel))
    if missing := kernel_symbols(kernel) - symbols_of(*kernel.ints) - bound:
        problem = f"{', '.join(sorted(map(str, missing)))} is not an argument"
        raise InvalidLoops(rule="K5", problem=problem, excerpt=kernel_text(kernel))


def verify_mapped_kernel(mapped: MappedKernel) -> None:
    """Raise InvalidLoops unless

    M1  with a tiling, each unit axis is a number or part of a dimension, each inner axis serial or part of one;
    and the kernel is right (K1 to K7); a run gives the symbols that count its units.
    """
    kernel, run, tiling = mapped.kernel, mapped.run, mapped.tiling
    counts = () if run is None else (run.count,) if run.rows is None else (run.count, run.rows.rows)
    verify_kernel(kernel, frozenset(counts))
    if tiling is not None:
        inner = {axis for phase in kernel.phases for axis in phase.axes}
        tiled = {axis for dim in tiling.dims for axis in dim.axes}
        left = {axis.symbol for axis in ({*kernel.units} - {*tiling.numbers} | inner) - tiled} - tiling.serial
        if left:
            problem = f"the tiling covers no {', '.join(sorted(map(str, left)))}"
            raise InvalidLoops(rule="M1", problem=problem, excerpt=mapped_kernel_text(mapped))


def _ranks(kernel: KernelIR) -> Ranks:
    ranks = {param.name: param.spec.rank for param in kernel.params}
    return ranks | {local.name: len(local.axes) for local in kernel.locals}


def _size_symbols_of(kernel: KernelIR) -> frozenset[Symbol]:
    axes = [*kernel.units, *(axis for phase in kernel.phases for axis in phase.axes)]
    return symbols_of(*(axis.size for axis in axes), *(size for param in kernel.params for size in param.spec.sizes))


def _kernel_problems(kernel: KernelIR) -> Problems:
    names = [param.name for param in kernel.params] + [local.name for local in kernel.locals]
    if len(set(names)) != len(names):
        yield "K1", "two parameters or locals have one name"
    if kernel.writes - {param.name for param in kernel.params}:
        yield "K1", "a written buffer is not a parameter"
    ranks = _ranks(kernel)
    locals_ = {local.name for local in kernel.locals}
    set_: set[str] = set()
    for phase in kernel.phases:
        yield from _effect_problems(phase, ranks, locals_ | kernel.writes)
        for access in accesses(phase.body):
            if access.buffer in locals_ and access.buffer not in set_:
                yield "K4", f"local {access.buffer} is loaded before it is written"
            if access.buffer in phase_writes(phase) and access.buffer in locals_ - set_:
                yield "K4", f"{access.buffer} is loaded and written in one phase"
        for effect in phase.effects:
            if isinstance(effect, Accumulate) and effect.exp_sum is not None and {effect.target, effect.exp_sum} & set_:
                yield "K7", f"{effect.target} or {effect.exp_sum} holds something already"
        set_ |= set(phase_writes(phase))
        yield from _axis_problems(kernel.units, phase)


def _effect_problems(phase: Phase, ranks: Ranks, writable: frozenset[str] | set[str]) -> Problems:
    for effect in phase.effects:
        running = effect.running if isinstance(effect, Accumulate) else None
        for target in (effect, *(() if running is None else (running,))):
            if target.target not in writable:
                yield "K2", f"{target.target} is not writable"
            elif ranks[target.target] != len(target.index):
                yield "K2", f"{target.target} has rank {ranks[target.target]}, the index {len(target.index)}"
        if not 0 <= effect.result < len(phase.body.results):
            yield "K2", f"the body has no result {effect.result}"
        if not isinstance(effect, Accumulate):
            continue
        if effect.exp_sum is not None:
            yield from _exp_sum_problems(effect, effect.exp_sum, ranks, writable)
        over = {axis.symbol for axis in effect.over}
        if not over <= {axis.symbol for axis in phase.axes}:
            yield "K3", f"{effect.target} reduces an axis that the phase lacks"
        if over & symbols_of(*effect.index):
            yield "K3", f"{effect.target} is indexed by an axis that it reduces"


def _exp_sum_problems(effect: Accumulate, beside: str, ranks: Ranks, writable: frozenset[str] | set[str]) -> Problems:
    if effect.op is not ReduceOp.MAX or effect.running is not None:
        yield "K7", f"{beside} does not stand beside a maximum"
    if beside not in writable or ranks[beside] != len(effect.index):
        yield "K7", f"{beside} is not an accumulator like {effect.target}"


def _axis_problems(units: tuple[Axis, ...], phase: Phase) -> Problems:
    symbols = [axis.symbol for axis in (*units, *phase.axes)]
    if len(set(symbols)) != len(symbols):
        yield "K6", "two axes have one symbol"
    if phase.vector is not None and not 0 <= phase.vector < len(phase.axes):
        yield "K6", "the vectorised axis is not an axis of the phase"
