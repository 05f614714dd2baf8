"""Settings of torch inside and around compiled code; random numbers; dropout; custom operators."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.reported.registry import Compile, Programs, attempt, floats, halves, leaf, one_leaf

PROGRAMS = Programs("global state")
program, scenario = PROGRAMS.program, PROGRAMS.scenario
LIBRARY = torch.library.Library("kiln_reported", "DEF")
LIBRARY.define("fill(Tensor(a!) x, float value) -> ()")
LIBRARY.impl("fill", lambda x, value: (x.fill_(value), None)[1], "CPU")
LIBRARY.define("accumulate(Tensor(a!) total, Tensor x) -> Tensor")
LIBRARY.impl("accumulate", lambda total, x: total.add_(x).sum(), "CPU")
LIBRARY.define("scaled(Tensor x, float factor=2.0) -> Tensor")
LIBRARY.impl("scaled", lambda x, factor=2.0: x * factor, "CPU")


@torch.library.custom_op("kiln_reported::cubed", mutates_args=())
def cubed(x: Tensor) -> Tensor:
    return x**3


cubed.register_autograd(
    lambda ctx, grad: grad * 3 * ctx.saved_tensors[0] ** 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)
cubed.register_fake(torch.empty_like)


@torch.library.custom_op("kiln_reported::increment", mutates_args=("x",))
def increment(x: Tensor, by: int) -> None:
    x.add_(by)


@scenario
def the_default_dtype(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (torch.ones(2), torch.tensor(1.5), x / 2, torch.arange(0, 1, 0.5), torch.get_default_dtype()))
    try:
        for dtype in (torch.float32, torch.float64, torch.float32, torch.bfloat16):
            torch.set_default_dtype(dtype)
            yield f(torch.ones(2, dtype=torch.int64))
    finally:
        torch.set_default_dtype(torch.float32)


@scenario
def the_default_dtype_set_inside(compile: Compile) -> Iterator[Any]:
    def inside(x: Tensor) -> Any:
        torch.set_default_dtype(torch.float64)
        try:
            return torch.ones(2) + x, torch.get_default_dtype()
        finally:
            torch.set_default_dtype(torch.float32)

    f = compile(inside)
    for n in (2, 2):
        yield f(torch.ones(n)), torch.get_default_dtype()


@program()
def autocast_inside(x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x.t()
        with torch.autocast("cpu", enabled=False):
            z = x @ x.t()
        enabled = torch.is_autocast_enabled("cpu")
    return y.dtype, y.float().round(), z, enabled, torch.is_autocast_enabled("cpu")


@scenario
def autocast_around(compile: Compile) -> Iterator[Any]:
    layer = torch.nn.Linear(8, 8)
    f = compile(
        lambda x: (layer(x).dtype, F.softmax(layer(x), -1).dtype, (x + x).dtype, torch.cat([x, layer(x)]).dtype)
    )
    x = floats(2, 8)
    yield f(x)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            yield f(x)
    yield f(x)


@scenario
def gradients_under_autocast(compile: Compile) -> Iterator[Any]:
    layer = torch.nn.Linear(4, 4)
    f = compile(lambda x: layer(x).float().sum())
    for _ in range(3):
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            y = f(torch.ones(2, 4))
        y.backward()
        yield layer.weight.grad, y.dtype


@scenario
def the_grad_mode_set_inside(compile: Compile) -> Iterator[Any]:
    def inside(x: Tensor, enabled: bool) -> Tensor:
        torch.set_grad_enabled(enabled)
        return x * 2

    f = compile(inside)
    try:
        for enabled in (False, True, False):
            yield f(leaf(2), enabled), torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


@scenario
def an_error_inside_no_grad(compile: Compile) -> Iterator[Any]:
    def failing(x: Tensor) -> Tensor:
        with torch.no_grad():
            return x.view(99)

    f = compile(failing)
    yield attempt(f, leaf(2)), torch.is_grad_enabled()
    yield attempt(f, leaf(3)), torch.is_grad_enabled()


@scenario
def deterministic_algorithms(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x * 2, torch.are_deterministic_algorithms_enabled()))
    try:
        for enabled in (False, True, False):
            torch.use_deterministic_algorithms(enabled)
            yield f(torch.ones(2))
    finally:
        torch.use_deterministic_algorithms(False)


@scenario
def the_default_device(compile: Compile) -> Iterator[Any]:
    f = compile(lambda: torch.ones(2).device.type)
    yield f()
    with torch.device("meta"):
        yield f()
    yield f()


@scenario
def dropout_and_its_scale(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, p: F.dropout(x, p, training=True))
    for p in (0.0, 0.5, 0.5, 1.0):
        y = f(torch.ones(2000), p)
        kept = (y != 0).float().mean()
        yield p, bool((kept - (1 - p)).abs() < 0.05), y.unique().numel(), y.max()


@scenario
def dropout_masks_differ(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (F.dropout(x), F.dropout(x)))
    first, second = f(torch.ones(200)), f(torch.ones(200))
    yield torch.equal(*first), torch.equal(first[0], second[0])


@scenario
def dropout_and_its_gradient(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: F.dropout(x, 0.5) * 3)
    for _ in range(2):
        x = torch.ones(200, requires_grad=True)
        y = f(x)
        y.sum().backward()
        yield torch.equal(x.grad, y.detach())  # type: ignore[arg-type]


@scenario
def seeds_repeat_numbers(compile: Compile) -> Iterator[Any]:
    f = compile(lambda n: (torch.rand(n), torch.randn(n), torch.randint(0, 99, (n,)), torch.randperm(n)))
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        first, again = f(50), f(50)
        torch.manual_seed(seed)
        yield [torch.equal(a, b) for a, b in zip(first, f(50), strict=True)]
        yield [torch.equal(a, b) for a, b in zip(first, again, strict=True)]


@scenario
def moments_of_random_numbers(compile: Compile) -> Iterator[Any]:
    n = 4000
    f = compile(
        lambda: (
            torch.rand(n),
            torch.randn(n),
            torch.bernoulli(torch.full((n,), 0.3)),
            torch.empty(n).uniform_(2, 4),
            torch.empty(n).normal_(1, 2),
            torch.empty(n).exponential_(2.0),
        )
    )
    for _ in range(2):
        values = f()
        yield (
            [bool((v.mean() - mean).abs() < 0.1) for v, mean in zip(values, (0.5, 0, 0.3, 3, 1, 0.5), strict=True)],
            [bool(v.std() > 0.1) for v in values],
            bool((values[0] < 1).all() & (values[0] >= 0).all()),
        )


@scenario
def a_seed_set_inside(compile: Compile) -> Iterator[Any]:
    def seeded(x: Tensor) -> Tensor:
        torch.manual_seed(7)
        return torch.rand(9) + x * 0

    f = compile(seeded)
    yield torch.equal(f(torch.ones(9)), f(torch.ones(9)))


@scenario
def random_numbers_of_python(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x * random.random(), random.randint(0, 10**6), random.choice("abc")))
    random.seed(3)
    for _ in range(3):
        yield f(torch.ones(2))
    yield random.random()


@scenario
def the_state_of_the_generator(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x * 2)
    torch.manual_seed(3)
    f(torch.ones(2))
    yield torch.rand(2)
    with torch.random.fork_rng():
        f(torch.ones(3))
        torch.rand(3)
    yield torch.rand(2)


@scenario
def generators_as_arguments(compile: Compile) -> Iterator[Any]:
    f = compile(lambda g: torch.rand(3, generator=g))
    g = torch.Generator().manual_seed(5)
    yield f(g), f(g)
    yield f(torch.Generator().manual_seed(5))


@scenario
def an_operator_that_writes_its_argument(compile: Compile) -> Iterator[Any]:
    def program(x: Tensor) -> Any:
        y = x * 2
        torch.ops.kiln_reported.fill(y[0], 7.0)
        total = torch.ops.kiln_reported.accumulate(x, y)
        return y, total, x + 1

    f = compile(program)
    for n in (2, 2, 3):
        x = floats(n, 2)
        yield f(x), x, x._version


@scenario
def custom_operators(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (cubed(x), torch.ops.kiln_reported.scaled(x), torch.ops.kiln_reported.scaled(x, factor=0.5)))
    for n in (2, 2, 3):
        x = leaf(n)
        y = f(x)
        y[0].sum().backward()
        yield y[0], y[1].detach(), x.grad


@scenario
def a_custom_operator_that_writes(compile: Compile) -> Iterator[Any]:
    def program(x: Tensor) -> Any:
        y = x.clone()
        increment(y, 2)
        increment(x[0], 1)
        return y, x * 1

    f = compile(program)
    for n in (2, 2, 3):
        x = floats(n, 2)
        yield f(x), x


@scenario
def warnings_are_given_once_per_call(compile: Compile) -> Iterator[Any]:
    def program(x: Tensor) -> Tensor:
        warnings.warn("mine", UserWarning, stacklevel=1)
        return x * 2

    f = compile(program)
    for _ in range(3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            y = f(torch.ones(2))
        yield y, sum(str(warning.message) == "mine" for warning in caught)


@scenario
def a_function_of_torch_that_is_patched(compile: Compile) -> Iterator[Any]:
    original = torch.sin
    f = compile(lambda x: torch.sin(x) + 1)
    x = torch.ones(2)
    yield f(x)
    try:
        torch.sin = torch.cos
        yield f(x)
    finally:
        torch.sin = original
    yield f(x)


@scenario
def a_tensor_subclass(compile: Compile) -> Iterator[Any]:
    class Named(torch.Tensor):
        """Keeps its class in results."""

    f = compile(lambda x: (x * 2, type(x).__name__, isinstance(x, Named)))
    for x in (floats(2), floats(2).as_subclass(Named), floats(2)):
        y, *rest = f(x)
        yield type(y).__name__, y.as_subclass(Tensor), rest


@scenario
def attributes_of_a_tensor(compile: Compile) -> Iterator[Any]:
    def program(x: Tensor) -> Any:
        y = x * 2
        y.tag = "y"
        return y, getattr(x, "tag", None)

    f = compile(program)
    x = floats(2)
    for tag in ("a", "b", None):
        x.tag = tag
        y, found = f(x)
        yield y.tag, found
    del x.tag
    yield f(x)[1]


@scenario
def meta_and_sparse_inputs(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x * 2).sum())
    yield f(torch.ones(2, device="meta")).device.type
    yield attempt(f, torch.eye(2).to_sparse())
    yield f(torch.ones(2))


@scenario
def halves_in_a_training_step(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, w: F.linear(x, w).float().square().mean())
    for _ in range(2):
        w = halves(4, 8).requires_grad_()
        f(halves(2, 8), w).backward()
        yield w.grad.dtype, w.grad.isfinite().all()  # type: ignore[union-attr]


PROGRAMS.add("item of a rank-0 input", lambda x: x.sum().item() * 2 + x.numel())
PROGRAMS.add(
    "repr and format", lambda x: (repr(x.shape), str(x.dtype), f"{x.shape}", x.dim(), x.element_size(), x.nbytes)
)
PROGRAMS.add(
    "questions about a tensor",
    lambda x: (
        x.is_floating_point(),
        x.is_complex(),
        x.device.type,
        x.layout == torch.strided,
        x.is_cuda,
        x.requires_grad,
        torch.is_tensor(x),
    ),
    one_leaf,
)
PROGRAMS.add("numpy", lambda x: torch.from_numpy(x.numpy() * 2) + 1)
