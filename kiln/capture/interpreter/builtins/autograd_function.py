"""`torch.autograd.Function`: the program's forward and backward are interpreted on the same recorder.

    y = Scale.apply(x, 2.0)     forward: a nested frame, now, without autograd
                                backward: a nested frame when the joint graph is made, its gradients part of that graph

If something needs a gradient, the results get an autograd node that calls back here, and the log has a single call,
`Scale.apply`, for user backends. A break in the forward or in the backward, which is interpreted last, restarts the
capture and breaks at the call of `apply`; so does a read of a variable from outside in the backward, which eager reads
later (`backward_reads.py`). A call within a function transform or under forward mode breaks the graph.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import field
from typing import final

import torch

import kiln.capture.interpreter.polyfills as polyfills
from kiln.capture.interpreter.breaks import GraphBreak, PastStep, Raised, TorchCallFailed, UnsupportedCall
from kiln.capture.interpreter.builtins.backward_reads import backward_frame
from kiln.capture.interpreter.builtins.function_transforms import OpenLevels
from kiln.capture.interpreter.builtins.outer_tensors import define_wrappers, note_wrappers
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.effects import changes
from kiln.capture.interpreter.frame import SymbolicFrame, running_frame
from kiln.capture.interpreter.outside_reads import parts
from kiln.capture.interpreter.variables.classes import Class
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.dtensor import LayoutObject, run_natively
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.capture.interpreter.variables.subclass import InnerCalls, part_of
from kiln.capture.interpreter.variables.tensor import Tensor, here, record
from kiln.graph.autograd.linear import note_nonlinear
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import Configuration, leaves
from kiln.graph.trace.recorder import record_function
from kiln.runtime.guards.guard import GuardKind
from kiln.support.records import dataclass

FUNCTION = torch.autograd.Function
APPLY = FUNCTION.__dict__["apply"]
"""A `classmethod` up to torch 2.13, written in C from 2.14."""
LIKE_PROGRAMS = ("torch.distributions.", "torch.nn.modules.", "torch.distributed._functional_collectives")
"""Parts of torch whose functions only compute."""
NATIVE_FUNCTIONS = "torch.distributed.tensor."
"""Where functions of DTensor are, which run natively on the fakes inside."""


@handles(getattr(APPLY, "__func__", APPLY))
def apply(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """`cls.apply(*args)`."""
    cls, given = args[0], args[1:]
    name = f"{cls.real().__qualname__}.apply"
    if not isinstance(cls, Class) or kwargs:
        raise UnsupportedCall(function=name, why="it is called with keyword arguments")
    if cls.cls in s.classes.made:
        raise UnsupportedCall(function=name, why="its class was made in this frame")
    natively = cls.cls.__module__.startswith(NATIVE_FUNCTIONS)
    if cls.cls.__module__.startswith("torch.") and not natively and not cls.cls.__module__.startswith(LIKE_PROGRAMS):
        raise UnsupportedCall(function=name, why="it is a part of torch that changes how autograd runs")
    if s.recorder.saved_hooks:
        raise UnsupportedCall(function=name, why="what it saves is packed by `saved_tensors_hooks`")
    if s.part(OpenLevels).closing:
        raise UnsupportedCall(function=name, why="a transform or forward mode has rules for it (`vmap`, `jvp`)")
    if natively:
        return apply_natively(s, cls, given)
    frame, call = running_frame(s), here(s)
    s.counters.unguarded += 1  # the backward of a repeated layer may behave differently
    mark = s.recorder.mark()
    fakes = [fake_of(arg) for arg in given]
    needs = tuple([fake is not None and fake.requires_grad for fake in fakes])
    context = interpret(s, polyfills.FunctionContext, [Tuple([Constant(need) for need in needs])])
    assert isinstance(context, Object)
    separate = s.classes.lookup(cls.cls, "setup_context")
    own = Constant(separate is not None and separate[0].__module__ != FUNCTION.__module__)
    result = interpret(s, polyfills.function_forward, [cls, context, own, Tuple(list(given))])
    if not torch.is_grad_enabled() or not any(needs):
        return result
    if attribute(s, context, "kiln_dirty"):
        raise UnsupportedCall(function=name, why="its forward changes its arguments in place (`mark_dirty`)").before(
            call
        )
    outputs = list(result.items(s)) if isinstance(result, Tuple) else [result]
    backward = InterpretedBackward(s, frame, call, cls, context, tuple(given), tuple(outputs))
    single = not isinstance(result, Tuple)
    made = attach(s, cls, given, outputs, plain_outputs(s, context, outputs), backward, mark, frame, single)
    backward.note_versions(attribute(s, context, "saved_tensors"), made)
    return made[0] if single else Tuple(made)


def apply_natively(s: CaptureState, cls: Class, given: Args) -> Value:
    """A function of torch that makes, moves or takes apart DTensors: torch's code runs on the fakes inside."""
    frame, call, mark = running_frame(s), here(s), s.recorder.mark()
    s.counters.unguarded += 1
    function, context = cls.cls, types.SimpleNamespace(set_materialize_grads=lambda value: None)
    needs = [fake is not None and fake.requires_grad for fake in map(fake_of, given)]
    try:
        result = run_natively(InnerCalls(s), function.forward, given, {}, before=(context,))  # type: ignore[attr-defined]
    except (RuntimeError, ValueError, AssertionError) as error:
        raise TorchCallFailed.because_of(f"{function.__qualname__}.apply", error) from error
    if not torch.is_grad_enabled() or not any(needs):
        return result
    backward = NativeBackward(s, call, cls, context, tuple(given))
    return attach(s, cls, given, [result], set(), backward, mark, frame, True)[0]


def interpret(s: CaptureState, function: object, args: Args) -> Value:
    return s.wrap(function, None).call(s, args, {})


def attribute(s: CaptureState, context: Object, name: str) -> list[Value]:
    """A tuple that the program stored through methods of the context."""
    found = context.attrs[name]
    return list(found.items(s)) if isinstance(found, Tuple) else []


def plain_outputs(s: CaptureState, context: Object, outputs: list[Value]) -> set[int]:
    """The outputs without a gradient: marked ones and integers."""
    marked = {id(output) for output in attribute(s, context, "kiln_plain")}
    return {
        number
        for number, output in enumerate(outputs)
        if (fake := fake_of(output)) is not None
        and (id(output) in marked or not (fake.is_floating_point() or fake.is_complex()))
    }


def attach(
    s: CaptureState,
    cls: Class,
    given: Args,
    outputs: list[Value],
    plain: set[int],
    backward: InterpretedBackward | NativeBackward,
    mark: int,
    frame: SymbolicFrame,
    single: bool,
) -> list[Value]:
    """The outputs with an autograd node; other values than tensors are unchanged."""
    args = [argument(s, arg) for arg in given]
    plain_results = [fake_of(output) for output in outputs]
    wrapped = any(part_of(value) is not None for value in (*given, *outputs))
    mode = InnerCalls(s)
    with mode if wrapped else nullcontext():
        if wrapped:
            mark = define_wrappers(s, given, backward.call, mark)
        results = record_function(
            s.recorder,
            mark, cls.cls.apply, args, plain_results, plain, backward, single=single, stack=frame.locations()  # type: ignore[attr-defined]
        )  # fmt: skip
    if not backward.materializes:
        made = [fake for number, fake in enumerate(results) if type(fake) is FakeTensor and number not in plain]
        s.recorder.unmaterialised.append((made, backward.refuse))
    if wrapped:
        note_wrappers(s, results)
    return [output if fake is None else mode.lift(fake) for output, fake in zip(outputs, results, strict=True)]


def argument(s: CaptureState, value: Value) -> object:
    """For the log: an object of the program, such as a configuration, is itself."""
    if isinstance(value, LayoutObject):
        return Configuration(value.value)
    if isinstance(value, Object) and part_of(value) is None and value.source is not None and value.native is None:
        s.guard(value.source, GuardKind.IS, s.reference(value.original))
        return Configuration(value.original)
    if isinstance(value, Tuple):
        items = [argument(s, item) for item in value.items(s)]
        if any(isinstance(leaf, Configuration) for leaf in leaves(items)):
            recorded = any(isinstance(leaf, FakeTensor | torch.SymInt | torch.SymFloat) for leaf in leaves(items))
            plain = items if recorded else [item.value if isinstance(item, Configuration) else item for item in items]
            made = value.cls._make(plain) if hasattr(value.cls, "_make") else tuple(plain)
            return made if recorded else Configuration(made)
    return value.torch_arg(s)


def fake_of(value: Value) -> FakeTensor | None:
    """The fake on which autograd runs."""
    if isinstance(value, Tensor):
        return value.fake
    part = part_of(value)
    return part.outer if part is not None else None


@final
@dataclass(frozen=True, eq=False)
class InterpretedBackward:
    """Called by the autograd engine with a fake per output, or None without a gradient."""

    state: CaptureState
    frame: SymbolicFrame
    call: PastStep
    cls: Class
    context: Object
    arguments: tuple[Value, ...]
    outputs: tuple[Value, ...]
    versions: list[tuple[FakeTensor, int]] = field(default_factory=list)
    """Of saved tensors; eager raises where one has changed, with an error that the program may handle."""

    def note_versions(self, saved: Sequence[Value], results: Sequence[Value]) -> None:
        results_of = {id(output): result for output, result in zip(self.outputs, results, strict=True)}
        for value in saved:
            fake = fake_of(results_of.get(id(value), value))
            if fake is not None and not fake.is_inference():
                self.versions.append((fake, fake._version))

    def __call__(self, grads: tuple[object, ...]) -> list[FakeTensor | None]:
        s = self.state
        if any(fake._version != version for fake, version in self.versions):
            self.refuse("a tensor that it saves is changed in place before its backward")
        if self.materializes:
            grads = tuple(s.recorder.materialised(grads, grads))
        known = self._known()
        kept = [fake_of(value) for value in parts(s, known)]
        given = (*grads, *kept) if s.recorder.is_differentiating else None
        before, first = changes(s, given), len(s.recorder.nodes)
        try:
            with backward_frame(s, self.frame, known):
                found = self._run(s, self._gradients(s, list(grads)))
            if changes(s, given) != before:
                raise UnsupportedCall(function=self.name, why="its backward has side effects")
            note_nonlinear(s.recorder, self.cls.cls, first, grads, found)
            return s.recorder.materialised(found, grads)
        except (GraphBreak, Raised) as problem:
            stop = UnsupportedCall(function=self.name, why=problem.reason)
            raise stop.before(self.call, problem.at or self.frame.location()) from problem

    def _known(self) -> list[Value]:
        """What the backward has since the forward: the context and what the program stored in it."""
        stored = [value for value in self.context.attrs.values() if value is not None]
        return [self.cls, self.context, *stored]

    @property
    def name(self) -> str:
        return f"{self.cls.cls.__qualname__}.backward"

    def _gradients(self, s: CaptureState, grads: list[object]) -> list[Value]:
        """One gradient per output; a missing one is zeros, or None if the program asked for that."""
        made: list[Value] = []
        tensors = iter(grads)
        for output in self.outputs:
            grad = next(tensors) if fake_of(output) is not None else None
            if grad is not None:
                made.append(InnerCalls(s).lift(grad))
            elif fake_of(output) is not None and self.materializes:
                made.append(record(s, torch.zeros_like, [output], {}))
            else:
                made.append(Constant(None))
        return made

    def _run(self, s: CaptureState, grads: list[Value]) -> list[FakeTensor | None]:
        result = interpret(s, polyfills.function_backward, [self.cls, self.context, Tuple(grads)])
        assert isinstance(result, Tuple)
        found = list(result.items(s))
        extra = found[len(self.arguments) :]
        if len(found) < len(self.arguments) or not all(s.is_none(grad) for grad in extra):
            raise UnsupportedCall(function=self.name, why=f"it returns {len(found)} gradients")
        pairs = list(zip(self.arguments, found, strict=False))
        if not all(s.is_none(grad) or fake_of(grad) is not None for _, grad in pairs):
            raise UnsupportedCall(function=self.name, why="one of the gradients that it returns is no tensor")
        return [fake_of(grad) for argument, grad in pairs if fake_of(argument) is not None]

    def refuse(self, why: str) -> None:
        raise UnsupportedCall(function=self.name, why=why).before(self.call)

    @property
    def materializes(self) -> bool:
        asked = self.context.attrs["kiln_materialize"]
        return asked is not None and bool(asked.constant(self.state))


@final
@dataclass(frozen=True, eq=False)
class NativeBackward:
    """Called by the autograd engine with the gradient of the only result."""

    state: CaptureState
    call: PastStep
    cls: Class
    context: types.SimpleNamespace
    arguments: tuple[Value, ...]
    materializes = True

    def __call__(self, grads: tuple[object, ...]) -> list[FakeTensor | None]:
        if all(grad is None for grad in grads):  # of a parameter without a gradient: torch 2.11 asks for a tensor
            return [None for argument in self.arguments if fake_of(argument) is not None]
        mode = InnerCalls(self.state, records=False)
        try:
            backward = self.cls.cls.backward  # type: ignore[attr-defined]
            result = run_natively(mode, backward, [mode.lift(grad) for grad in grads], {}, before=(self.context,))
        except (GraphBreak, RuntimeError, ValueError, AssertionError) as problem:
            name = f"{self.cls.cls.__qualname__}.backward"
            raise UnsupportedCall(function=name, why=str(problem)).before(self.call) from problem
        assert isinstance(result, Tuple)
        pairs = zip(self.arguments, result.items(self.state), strict=True)
        return [fake_of(grad) for argument, grad in pairs if fake_of(argument) is not None]

    def refuse(self, why: str) -> None:
        raise UnsupportedCall(function=f"{self.cls.cls.__qualname__}.apply", why=why).before(self.call)
