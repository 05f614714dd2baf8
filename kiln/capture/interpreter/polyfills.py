"""Python versions of parts of the standard library that are written in C, interpreted in their place.

    itertools.takewhile(f, items)    is interpreted as    takewhile(f, items)  below

So the predicates and iterators that they call are inlined like any other code. Each behaves as the documentation of
its original says.
"""

from __future__ import annotations

import copyreg
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TextIO, TypeVar

import torch
from torch.utils._device import DeviceContext

ABSENT: Any = object()
T = TypeVar("T")


def itemgetter(item: object, *items: object) -> Callable[[Any], object]:
    if not items:
        return lambda obj: obj[item]
    return lambda obj: tuple([obj[key] for key in (item, *items)])


def attrgetter(attr: str, *attrs: str) -> Callable[[object], object]:
    def resolved(obj: object, path: str) -> object:
        for name in path.split("."):
            obj = getattr(obj, name)
        return obj

    if not attrs:
        return lambda obj: resolved(obj, attr)
    return lambda obj: tuple([resolved(obj, path) for path in (attr, *attrs)])


def methodcaller(name: str, /, *args: object, **kwargs: object) -> Callable[[object], object]:
    return lambda obj: getattr(obj, name)(*args, **kwargs)


def reduce_ex(self: object, protocol: int) -> object:
    """`object.__reduce_ex__`."""
    cls = type(self)
    if cls.__reduce__ is not object.__reduce__:
        return self.__reduce__()
    if protocol < 2:
        return copyreg._reduce_ex(self, protocol)  # type: ignore[attr-defined]
    arguments: tuple[object, ...] = ()
    keywords: dict[str, object] = {}
    if hasattr(cls, "__getnewargs_ex__"):
        arguments, keywords = self.__getnewargs_ex__()  # type: ignore[attr-defined]
    elif hasattr(cls, "__getnewargs__"):
        arguments = self.__getnewargs__()  # type: ignore[attr-defined]
    items = iter(self) if isinstance(self, list) else None
    pairs = iter(self.items()) if isinstance(self, dict) else None
    state = self.__getstate__() if cls.__getstate__ is not object.__getstate__ else plain_state(self, cls)
    if keywords:
        return copyreg.__newobj_ex__, (cls, arguments, keywords), state, items, pairs  # type: ignore[attr-defined]
    return copyreg.__newobj__, (cls, *arguments), state, items, pairs  # type: ignore[attr-defined]


def object_dir(value: object) -> list[str]:
    """`object.__dir__`."""
    own = getattr(value, "__dict__", None)
    names: dict[str, object] = dict(own) if isinstance(own, dict) else {}
    add_names(names, value.__class__)
    return list(names)


def type_dir(cls: type) -> list[str]:
    """`type.__dir__`."""
    names: dict[str, object] = {}
    add_names(names, cls)
    return list(names)


def add_names(names: dict[str, object], cls: type) -> None:
    names.update(cls.__dict__)
    for base in cls.__bases__:
        add_names(names, base)


def remove_dead_weakref(references: dict[Hashable, weakref.ref[object]], key: Hashable) -> None:
    found = references.get(key)
    if found is not None and found() is None:
        del references[key]


class Gone:
    """Instances are referred to after they have been freed."""


def dead_reference(cls: type[weakref.ref[Gone]]) -> object:
    """Called by transformed code: a reference whose referent is gone."""
    return weakref.ref.__new__(cls, Gone())


def namespace_repr(self: types.SimpleNamespace) -> str:
    cls = type(self)
    name = "namespace" if cls is types.SimpleNamespace else cls.__name__
    return f"{name}({', '.join([f'{key}={value!r}' for key, value in self.__dict__.items()])})"


def plain_state(self: object, cls: type) -> object:
    """`object.__getstate__`."""
    own = dict(self.__dict__) if hasattr(self, "__dict__") and self.__dict__ else None
    slots = {}
    for kind in cls.__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            private = name.startswith("__") and not name.endswith("__") and kind.__name__.lstrip("_")
            slot = f"_{kind.__name__.lstrip('_')}{name}" if private else name
            if slot not in ("__dict__", "__weakref__") and hasattr(self, slot):
                slots[slot] = getattr(self, slot)
    return (own, slots) if slots else own


def print_to(stream: TextIO, *args: object, sep: str | None = " ", end: str | None = "\n", flush: bool = False) -> None:
    for number, arg in enumerate(args):
        if number:
            stream.write(" " if sep is None else sep)
        stream.write(str(arg))
    stream.write("\n" if end is None else end)
    if flush:
        stream.flush()


def lru_cache(maxsize: object = 128, typed: bool = False) -> Callable[..., object]:
    if callable(maxsize):
        return cached(maxsize, 128, False)
    limit = max(maxsize, 0) if isinstance(maxsize, int) else None
    return lambda function: cached(function, limit, typed)


def cached(function: Callable[..., object], maxsize: int | None, typed: bool) -> Callable[..., object]:
    """What was used last is last in the dict. As in C, the key of a lone int or str differs from an equal float's."""
    known: dict[object, object] = {}
    hits = misses = 0

    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        nonlocal hits, misses
        key: object = (args, tuple(kwargs.items()))
        if typed:
            key = (key, tuple([type(value) for value in (*args, *kwargs.values())]))
        elif len(args) == 1 and not kwargs and type(args[0]) in (int, str):
            key = args[0]
        if key in known:
            hits += 1
            result = known.pop(key)
        else:
            misses += 1
            result = function(*args, **kwargs)
        if maxsize is None or maxsize > 0:
            if maxsize is not None and len(known) >= maxsize:
                del known[next(iter(known))]
            known[key] = result
        return result

    def cache_info() -> object:
        return functools._CacheInfo(hits, misses, maxsize, len(known))

    def cache_clear() -> None:
        nonlocal hits, misses
        hits = misses = 0
        known.clear()

    added = {"cache_info": cache_info, "cache_clear": cache_clear}
    vars(wrapper).update(added, cache_parameters=lambda: {"maxsize": maxsize, "typed": typed})
    return wrapper


def running_sum(x: torch.Tensor, axis: int) -> torch.Tensor:
    """`numpy.cumsum` begins with the first number, torch with 0: it is -0 as long as all numbers are."""
    is_minus_zero = torch.signbit(x) & (x == 0)
    return torch.where(torch.cumsum(~is_minus_zero, axis) == 0, x, torch.cumsum(x, axis))


def count_elements(mapping: dict[Hashable, int], iterable: Iterable[Hashable]) -> None:
    """The counting loop of `collections.Counter`."""
    for element in iterable:
        mapping[element] = mapping.get(element, 0) + 1


class FunctionContext:
    """The `ctx` of an interpreted `torch.autograd.Function`."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[object, ...] = ()
        self.kiln_plain: tuple[object, ...] = ()
        self.kiln_dirty: tuple[object, ...] = ()
        self.kiln_materialize = True

    def save_for_backward(self, *tensors: object) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: object) -> None:
        """For forward-mode derivatives, which are not supported."""

    def mark_non_differentiable(self, *tensors: object) -> None:
        self.kiln_plain = tensors

    def mark_dirty(self, *tensors: object) -> None:
        self.kiln_dirty = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.kiln_materialize = value


def function_forward(cls: Any, context: FunctionContext, separate: bool, args: tuple[object, ...]) -> object:
    """The forward of an autograd function, without autograd; sets up the context."""
    with torch.no_grad():
        if not separate:
            return cls.forward(context, *args)
        result = cls.forward(*args)
        cls.setup_context(context, args, result)
        return result


def function_backward(cls: Any, context: FunctionContext, grads: tuple[object, ...]) -> tuple[object, ...]:
    """The gradients as a tuple."""
    found = cls.backward(context, *grads)
    return found if isinstance(found, tuple) else (found,)


def disable_overrides(number: int) -> bool:
    """Modelled: skips `__torch_function__` of subclasses; returns whether it was skipped before."""
    raise NotImplementedError


def restore_overrides(disabled: bool) -> None:
    """Modelled: ends the last `disable_overrides`."""
    raise NotImplementedError


class NoTorchFunction:
    """`torch._C.DisableTorchFunctionSubclass`, the `number`-th of the frame."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> None:
        self.before = disable_overrides(self.number)

    def __exit__(self, *raised: object) -> None:
        restore_overrides(self.before)


# torch._check and its kin: what follows holds, see `data_values.py`.


def check_with(kind: type[Exception], cond: object, message: Callable[[], object] | None = None) -> None:
    if not cond:
        raise kind("Expected cond to be True" if message is None else str(message()))


def check(cond: object, message: Callable[[], object] | None = None) -> None:
    check_with(RuntimeError, cond, message)


def check_index(cond: object, message: Callable[[], object] | None = None) -> None:
    check_with(IndexError, cond, message)


def check_value(cond: object, message: Callable[[], object] | None = None) -> None:
    check_with(ValueError, cond, message)


def check_type(cond: object, message: Callable[[], object] | None = None) -> None:
    check_with(TypeError, cond, message)


def check_tensor_all(cond: torch.Tensor, message: Callable[[], object] | None = None) -> None:
    check_with(RuntimeError, cond.all(), message)


def assert_scalar(cond: object, message: str) -> None:
    check_with(RuntimeError, cond, lambda: message)


def assert_tensor_metadata(
    a: torch.Tensor,
    size: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    *,
    device: torch.device | None = None,
    layout: torch.layout | None = None,
) -> None:
    """What torch.export states of the argument of a conversion."""
    stated = {"sizes": size, "strides": stride, "dtype": dtype, "device": device, "layout": layout}
    found = {
        "sizes": list(a.shape),
        "strides": list(a.stride()),
        "dtype": a.dtype,
        "device": a.device,
        "layout": a.layout,
    }
    for name, wanted in stated.items():
        if wanted is not None and found[name] != wanted:
            raise RuntimeError(f"Tensor {name} mismatch! Expected: {wanted} Got: {found[name]}")


def chosen(condition: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Both sides meet in front of the `return`, so that they can be a branch in the graph."""
    made = left if condition else right
    return made  # noqa: RET504


def check_is_size(i: int, message: Callable[[], object] | None = None, *, max: int | None = None) -> None:
    check(i >= 0, message)
    if max is not None:
        check(i <= max, message)


def pad_sequence(
    sequences: Sequence[torch.Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> torch.Tensor:
    """Torch's C++ takes the lengths as plain numbers."""
    kinds = [(x.dtype, x.device, x.shape[1:]) for x in sequences if x.dim()]
    alike = len(kinds) == len(sequences) > 0 and kinds.count(kinds[0]) == len(kinds)
    if not alike or padding_side not in ("left", "right"):
        made: torch.Tensor = torch.ops.aten.pad_sequence.default(sequences, batch_first, padding_value, padding_side)
        return made
    length, rows = max([x.size(0) for x in sequences]), []
    for x in sequences:
        missing = length - x.size(0)
        ends = (missing, 0) if padding_side == "left" else (0, missing)
        rows.append(torch.nn.functional.pad(x, (0, 0) * (x.dim() - 1) + ends, value=padding_value))
    return torch.stack(rows, 0 if batch_first else 1)


def equal(input: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one device have equal sizes and elements."""
    return input.shape == other.shape and (input == other).all().item()  # type: ignore[return-value]


def allclose(
    input: torch.Tensor, other: torch.Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    return torch.isclose(input, other, rtol=rtol, atol=atol, equal_nan=equal_nan).all().item()  # type: ignore[return-value]


def is_nonzero(input: torch.Tensor) -> bool:
    return (input != 0).item()  # type: ignore[return-value]


def broadcast_shapes(*shapes: int | Sequence[int]) -> torch.Size:
    """Sizes may be symbols, which torch's own does not take."""
    expanded = [torch.empty((), device="cpu").expand(shape) for shape in shapes]
    return torch.broadcast_tensors(*expanded)[0].shape if expanded else torch.Size()


def record_function_init(self: Any, name: str, args: str | None = None) -> None:
    """`torch.profiler.record_function`: regions have names of their own in profiles, so its ranges are left out."""
    self.name = name
    self.args = args
    self.run_callbacks_on_exit = False
    self.record = None
    self._cupti_monitor_external_id = None


def record_function_enter(self: Any) -> Any:
    return self


def record_function_exit(self: Any, kind: object, error: object, traceback: object) -> None:
    """No exception is swallowed."""


def enter_device(device: torch.device) -> torch.device:
    torch._C._push_on_torch_function_stack(DeviceContext(device))
    return device


def leave_device(device: torch.device, kind: object, error: object, traceback: object) -> None:
    torch._C._pop_torch_function_stack()


def value_of_state(x: object) -> object:
    """`torch.optim.optimizer._get_value`: a count of steps or a learning rate, with which eager computes in double.

    torch's own, when compiled, is the tensor itself, in which `1 - beta ** step` would be rounded to float32.
    """
    if not isinstance(x, torch.Tensor):
        return x
    return x.double() if x.is_floating_point() else x.item()


def grouped_tensors(
    lists: Sequence[Sequence[torch.Tensor | None]], with_indices: bool = False
) -> dict[tuple[torch.device, torch.dtype], tuple[list[list[object]], list[int]]]:
    """`torch._C._group_tensors_by_device_and_dtype`: the first list, which has no None, decides."""
    groups: dict[tuple[torch.device, torch.dtype], tuple[list[list[object]], list[int]]] = {}
    for index, first in enumerate(lists[0]):
        assert first is not None
        key = first.device, first.dtype
        if key not in groups:
            groups[key] = [[] for _ in lists], []
        parts, indices = groups[key]
        for part, tensors in zip(parts, lists, strict=True):
            if tensors:
                part.append(tensors[index])
        if with_indices:
            indices.append(index)
    return groups


def bisect_right(a: Sequence[float], x: float, lo: int = 0, hi: int | None = None) -> int:
    """`bisect.bisect_right` of a short list of constants: each comparison that is needed is a guard."""
    hi = len(a) if hi is None else hi
    while lo < hi:
        middle = (lo + hi) // 2
        if x < a[middle]:
            hi = middle
        else:
            lo = middle + 1
    return lo


def bisect_left(a: Sequence[float], x: float, lo: int = 0, hi: int | None = None) -> int:
    hi = len(a) if hi is None else hi
    while lo < hi:
        middle = (lo + hi) // 2
        if a[middle] < x:
            lo = middle + 1
        else:
            hi = middle
    return lo


def shadowed_dict(cls: type) -> object:
    """`inspect._shadowed_dict`, without the cache by weak references to classes that CPython has from 3.12.3 on."""
    for kind in inspect._static_getmro(cls):  # type: ignore[attr-defined]
        found = inspect._get_dunder_dict_of_class(kind).get("__dict__", ABSENT)  # type: ignore[attr-defined]
        own = type(found) is types.GetSetDescriptorType and found.__name__ == "__dict__" and found.__objclass__ is kind
        if found is not ABSENT and not own:
            return found
    return inspect._sentinel  # type: ignore[attr-defined]


def hooked_gradient(grad: object, hooks: dict[int, Callable[[object], object]]) -> object:
    """What the hooks of a leaf make of its gradient."""
    for hook in list(hooks.values()):
        result = hook(grad)
        if result is not None:
            grad = result
    return grad


def hooks_of_leaf(leaf: object, hooks: dict[int, Callable[[object], object]], create_graph: bool) -> None:
    """Call hooks registered by `register_post_accumulate_grad_hook`."""
    with torch.set_grad_enabled(create_graph):
        for hook in list(hooks.values()):
            if hook(leaf) is not None:
                raise RuntimeError("Tensor post accumulate grad hooks should return None.")


NodeHook = Callable[[object, object], object]


def hook_of_node(hook: NodeHook, given: tuple[object, ...], seen: tuple[object, ...], create_graph: bool) -> object:
    """Call a hook of a node of autograd's graph, in a frame for each that eager has there: its warnings count them."""
    return called_by_backward(hook, given, seen, create_graph)


def called_by_backward(hook: NodeHook, given: tuple[object, ...], seen: tuple[object, ...], create: bool) -> object:
    return called_by_engine(hook, given, seen, create)


def called_by_engine(hook: NodeHook, given: tuple[object, ...], seen: tuple[object, ...], create: bool) -> object:
    with torch.set_grad_enabled(create):
        return hook(given, seen)


def launch_kernel(
    kernel: str, call: str, written: list[torch.Tensor], read: list[torch.Tensor], ints: list[int]
) -> None:
    """Triton kernels know nothing of gradients."""
    torch.ops.kiln_triton.launch(kernel, call, [x.detach() for x in written], [x.detach() for x in read], ints)


def encode(
    self: torch.nn.TransformerEncoder,
    src: torch.Tensor,
    mask: torch.Tensor | None = None,
    src_key_padding_mask: torch.Tensor | None = None,
    is_causal: bool | None = None,
) -> torch.Tensor:
    """`nn.TransformerEncoder.forward`. Where eager packs rows that end in padding, padding is zero in the result."""
    if mask is not None or src_key_padding_mask is None or is_causal or not packs(self, src):
        return encode_padded(self, src, mask, src_key_padding_mask, is_causal)
    present = src_key_padding_mask.logical_not()
    places = torch.arange(src.shape[1], device=src.device)
    at_ends = (present == (places < present.sum(1, keepdim=True))).all()
    for layer in self.layers:
        src = layer(src, src_key_padding_mask=src_key_padding_mask)
    src = torch.where((at_ends & ~present).unsqueeze(-1), 0.0, src)
    return src if self.norm is None else self.norm(src)


def packs(encoder: torch.nn.TransformerEncoder, src: torch.Tensor) -> bool:
    """Whether eager makes a nested tensor."""
    first = encoder.layers[0]
    packs = encoder.use_nested_tensor and not first.training and torch.backends.mha.get_fastpath_enabled()
    if not packs or src.dim() != 3 or torch.is_autocast_enabled():
        return False
    return not (torch.is_grad_enabled() and any([x.requires_grad for x in (src, *first.parameters())]))


def encode_padded(self: torch.nn.TransformerEncoder, *args: object) -> torch.Tensor:
    """What `nn.TransformerEncoder.forward` does itself."""
    raise NotImplementedError
