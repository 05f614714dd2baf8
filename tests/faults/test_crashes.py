"""Programs that once crashed the compiler, ran eager for no reason, or failed where eager does not."""

from __future__ import annotations

import collections
import inspect
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kiln
from tests.faults.outcome import assert_like_eager

X = torch.arange(3.0)


def signed(a: int, b: int = 2) -> None:
    """Has a signature."""


SIGNATURE = inspect.signature(signed)
ORDERED = types.MappingProxyType(collections.OrderedDict({"a": 1.0, "b": 2.0}))
BY_CLASS = types.MappingProxyType({int: 2.0, str: 3.0})
ORDERED_BY_CLASS = collections.OrderedDict({int: 2.0, str: 3.0})


def compiled_whole(program: Callable[..., Any], *calls: tuple[Any, ...], **options: Any) -> None:
    """Every call is like eager's and nothing runs eager."""
    compiled = kiln.compile(program, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for arguments in calls:
            assert_like_eager(compiled, program, *arguments)
    assert kiln.report_of(compiled).eager == 0


class Refusing:
    """What transformers' ModelOutput does to methods that would lose its attributes."""

    def refuse(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("not on this object")

    update = clear = pop = popitem = setdefault = __delitem__ = __ior__ = refuse


class RefusingDict(Refusing, dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        dict.__setitem__(self, key, value)
        dict.__setattr__(self, key, value)

    def __setattr__(self, key: str, value: Any) -> None:
        if key in self.keys():
            dict.__setitem__(self, key, value)
        dict.__setattr__(self, key, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> RefusingDict:
        made = RefusingDict()
        for key, value in self.items():
            made[key] = value.clone()
        return made


class RefusingOrderedDict(Refusing, collections.OrderedDict[str, Any]):
    def __deepcopy__(self, memo: dict[int, Any]) -> RefusingOrderedDict:
        made = RefusingOrderedDict()
        for key, value in self.items():
            collections.OrderedDict.__setitem__(made, key, value.clone())
        return made


class RefusingList(list[Any]):
    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("not on this object")


class RefusingSet(set[int]):
    def clear(self) -> None:
        raise TypeError("not on this object")

    update = clear  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [RefusingDict, RefusingOrderedDict])
def test_effects_on_a_dict_use_dicts_own_methods(kind: Any) -> None:
    def program(mapping: Any, x: Tensor) -> Tensor:
        mapping["last"] = x * 3
        return x + 1

    filled = kind()
    collections.OrderedDict.__setitem__(filled, "last", X) if kind is RefusingOrderedDict else filled.__setitem__(
        "last", X
    )
    compiled_whole(program, (filled, X), (filled, X + 1))


def test_effects_on_a_list_and_a_set_use_their_own_methods() -> None:
    def program(items: list[Any], numbers: set[int], x: Tensor) -> Tensor:
        items.insert(0, x * 2)
        numbers.add(3)
        return x + len(items) + len(numbers)

    compiled_whole(program, (RefusingList([X]), RefusingSet({1}), X))


def test_a_capture_that_raises_is_no_better_than_one_that_breaks() -> None:
    def program(w: Tensor, x: Tensor, m: list[float] | None) -> Tensor:
        if torch.compiler.is_compiling():
            m = None
        x = x * m[0]  # type: ignore[index]
        w.data = w.data * 2
        return (w * x).cos()

    compiled_whole(program, (torch.ones(3, requires_grad=True), X, [2.0]), (torch.ones(3), X, [2.0]))


def test_a_condition_on_a_size_that_depends_on_data() -> None:
    def program(x: Tensor, n: Tensor) -> Tensor:
        x = F.pad(x, (0, n))  # type: ignore[arg-type]
        return x + 1 if x.shape[-1] + n > 2 else x

    compiled_whole(program, (X, torch.tensor(2)), (X, torch.tensor(3)), (X[:1], torch.tensor(0)))


def test_attributes_of_a_thread_local_object_are_written_in_python() -> None:
    local = threading.local()

    def program(x: Tensor) -> Tensor:
        local.scaled = x * 2
        return x + 1

    compiled_whole(program, (X,))
    torch.testing.assert_close(local.scaled, X * 2)


def test_mapping_proxies_and_ordered_dicts_from_outside() -> None:
    def program(x: Tensor) -> Any:
        names = [name for name, value in SIGNATURE.parameters.items() if value.default is inspect.Parameter.empty]
        x = x * ORDERED["b"] + sum(ORDERED.values()) + len(BY_CLASS) + BY_CLASS[str]
        return x * len(SIGNATURE.parameters), names, [kind is int for kind in BY_CLASS], ORDERED_BY_CLASS[str]

    compiled_whole(program, (X,), (X + 1,))


def test_a_changed_mapping_behind_a_proxy_is_noticed() -> None:
    content = {"a": 1.0}
    proxy = types.MappingProxyType(content)

    def program(x: Tensor) -> Tensor:
        return x * proxy["a"] + sum(proxy.values())

    compiled = kiln.compile(program)
    for change in ({"a": 2.0}, {"a": 2.0, "b": 5.0}, {"b": 5.0}):
        content.clear()
        content.update(change)
        try:
            expected = program(X)
        except KeyError:
            with pytest.raises(KeyError):
                compiled(X)
        else:
            torch.testing.assert_close(compiled(X), expected)
    assert kiln.report_of(compiled).eager == 0


def test_sizes_of_a_custom_op_that_depend_on_data() -> None:
    library = torch.library.Library("kiln_crashes", "FRAGMENT")
    library.define("above(Tensor x) -> Tensor")
    library.impl("above", lambda x: (x > 0.5).nonzero().flatten(), "CPU")
    library.define("kept(Tensor x) -> Tensor")
    library.impl("kept", lambda x: x[x != 0], "CPU")

    def program(x: Tensor) -> Any:
        return torch.ops.kiln_crashes.above(x) + 1, torch.ops.kiln_crashes.kept(x) * 2

    compiled_whole(program, *((values,) for values in (torch.zeros(3), torch.ones(3), X, torch.ones(1))))


REFUSED = {
    "floor division": lambda x: x // 2 * x,
    "exp changed": lambda x: x.exp().add_(1).sum(),
    "product changed": lambda x: (lambda y: (y * y, y.add_(1)))(x.exp())[0].sum(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_backward_that_eager_refuses_too(name: str) -> None:
    """Only calling it is an error."""
    program = REFUSED[name]
    x = torch.ones(3, requires_grad=True)
    compiled = kiln.compile(program)
    with pytest.warns(UserWarning, match="KILN2603"):
        torch.testing.assert_close(compiled(x), program(x))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), program(x))
    assert (kiln.report_of(compiled).compiles, kiln.report_of(compiled).eager) == (2, 1)
    for function in (compiled, program):
        with pytest.raises(RuntimeError, match=r"derivative|modified by an inplace"):
            function(x).sum().backward()


def test_products_with_bias_and_symbolic_sizes() -> None:
    def program(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return torch.addmm(a + 1, b + 2, c + 3) + 4

    def arguments(n: int, rows: int = 0) -> tuple[Tensor, ...]:
        return torch.rand(n) if rows else torch.rand(n, n), torch.rand(rows or n, n), torch.rand(n, n)

    compiled_whole(program, arguments(3), arguments(4), arguments(5), arguments(4, 7), arguments(5, 6))
    compiled_whole(program, arguments(3), arguments(4), dynamic=True)


@pytest.mark.parametrize("factor", [2j, 1 + 1j, 2.0])
def test_gradients_of_products_with_complex_numbers(factor: complex) -> None:
    def program(z: Tensor) -> Tensor:
        return torch.mul(z, factor) + z / factor

    z = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    compiled = kiln.compile(program)
    expected, found = (torch.autograd.grad(function(z).abs().sum(), z)[0] for function in (program, compiled))
    torch.testing.assert_close(found, expected)
    assert kiln.report_of(compiled).eager == 0


class Static:
    @staticmethod
    def unbound(x: Tensor) -> Any:
        return super().__init__, x  # type: ignore[misc]

    @staticmethod
    def without_arguments() -> Any:
        return super()  # type: ignore[misc]


@pytest.mark.parametrize("program", [Static.unbound, lambda x: (Static.without_arguments(), x)])
def test_super_without_an_instance(program: Any) -> None:
    assert_like_eager(kiln.compile(program), program, X)


def test_a_size_outside_of_the_marked_range() -> None:
    def program(x: Tensor) -> Tensor:
        return x * 2

    compiled = kiln.compile(program)
    for size in (9, 3, 8):
        x = torch.ones(size)
        torch._dynamo.mark_dynamic(x, 0, min=4, max=8)
        torch.testing.assert_close(compiled(x), program(x))
    assert kiln.report_of(compiled).eager == 0


def test_python_types_in_the_graph_of_a_backend() -> None:
    examples: list[Any] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        examples.extend(inputs)
        module.recompile()
        return module.forward

    compiled_whole(lambda x: x.to(bool), (X,), backend=backend)
    compiled_whole(lambda x: x.type(torch.HalfTensor), (X,), backend=backend)
    compiled_whole(lambda x: torch.zeros(3, dtype=int) + x.to(float), (X,), backend=backend)  # type: ignore[call-overload]
    examples.clear()
    compiled_whole(lambda x, n: x * n, (X, 2), (X, 3), (X, 4), backend=backend, dynamic=True)
    assert [type(example) for example in examples] == [Tensor, int]


def test_a_function_in_the_graph_of_a_backend() -> None:
    def doubled(grad: Tensor) -> Tensor:
        return grad * 2

    def program(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(doubled)
        return y

    x = torch.ones(3, requires_grad=True)
    compiled = kiln.compile(program, backend=lambda module, inputs: module.forward)
    expected, found = (torch.autograd.grad(function(x).sum(), x)[0] for function in (program, compiled))
    torch.testing.assert_close(found, expected)
    assert kiln.report_of(compiled).eager == 0


def branch(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))


def kept(x: Tensor) -> tuple[bool, Tensor]:
    y = torch._higher_order_ops.while_loop(lambda i, x: i < 0, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))[1]
    return y is x, y


def loop(x: Tensor) -> Any:
    return torch._higher_order_ops.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))


def rows(x: Tensor) -> Tensor:
    return torch._higher_order_ops.map(lambda row, bias: row * 2 + bias, x, torch.tensor(3.0))


def doubled(x: Tensor) -> Tensor:
    return x * 2


OTHER = torch.compile(doubled, backend="eager")


def test_a_condition_on_data_breaks_in_its_place() -> None:
    """In eager mode `torch.cond` runs torch's compiler: the graph breaks at the condition, not in front."""
    seen: dict[int, int] = {}

    def noted(x: Tensor) -> Tensor:
        seen[len(seen)] = 1
        return x * 2

    def plain(x: Tensor) -> Tensor:
        return (x * 6 if x.sum() > 0 else x * 3 - 1) + x

    def program(x: Tensor) -> Tensor:
        return torch.cond((x * 3).sum() > 0, noted, lambda x: x - 1, (x * 3,)) + x

    compiled = kiln.compile(program, options={"cache": False})
    for x in (X, -X, X * 2, -X * 2):
        torch.testing.assert_close(compiled(x), plain(x))
    assert len(seen) == 2
    report = kiln.report_of(compiled)
    assert (report.regions, report.compiles, report.eager) == (4, 4, 0), report
    assert len(report.breaks) == 1 and "test_crashes.py" in str(report.breaks[0]), report


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("program", "compiles"),
    [
        (branch, 6), (kept, 3), (loop, 3), (rows, 3),
        (lambda x: OTHER(x) + 1, 4), (lambda x: torch.compile(doubled, backend="eager")(x) + 1, 6),
        (lambda x: torch.vmap(doubled)(x) + 1, 8), (lambda x: torch.func.grad(lambda y: doubled(y).sum())(x) + 1, 8),
    ],
)  # fmt: skip
def test_operators_that_trace_are_not_interpreted(program: Any, compiles: int) -> None:
    """Their Python is torch's compiler: 170 compiles in four calls of `torch.cond`."""
    compiled = kiln.compile(program)
    for x in (X, -X, X, -X, torch.arange(100.0)):
        torch.testing.assert_close(compiled(x), program(x))
    report = kiln.report_of(compiled)
    assert (report.compiles <= compiles, report.eager) == (True, 0), report


def test_a_module_among_whose_parts_is_a_text() -> None:
    """The key of stored variants asked each part for its attributes."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    compiled_whole(lambda module, x: module[0](x), (model, torch.ones(1, 2)))
    model._modules["note"] = "text"  # type: ignore[assignment]
    model[0]._parameters["count"] = 3  # type: ignore[assignment]
    compiled_whole(lambda module, x: module[0](x) + 1, (model, torch.ones(1, 2)))


@pytest.mark.parametrize(
    "program", [lambda x: x.sort(3), lambda x: x.sort(dim=1, stable=True), lambda x: x.topk(4), lambda x: x.kthvalue(4)]
)
@pytest.mark.parametrize("dynamic", [None, True])
def test_an_error_of_a_sort_that_needs_a_gradient(program: Callable[[Tensor], Any], dynamic: bool | None) -> None:
    """Its rule accepted the call, and its gradient could not be recorded."""
    compiled = kiln.compile(program, dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in (3, 2, 0):
            with pytest.raises((IndexError, RuntimeError)) as expected:
                program(torch.ones(size, requires_grad=True))
            with pytest.raises(expected.type):
                compiled(torch.ones(size, requires_grad=True))


def test_a_list_of_which_two_tensors_are_made_behind_a_break() -> None:
    """Each was an input of its own, at the same place, and had to have other memory than itself."""

    def program(x: Tensor, items: list[int], table: dict[int, int]) -> Tensor:
        if x.sum() > -5:
            table.popitem()
            x *= torch.tensor(items).sum() + 1
            x *= torch.tensor(items).sum() + 2
            first, second = torch.tensor(items), torch.tensor(items)
            first[0] = 7
            x += (first - second).sum()
        return x

    calls = [[1, 0, 2], [1, 0, 2], [3, 1], [4, 4, 0, 1]]
    compiled_whole(program, *[(torch.ones(2), items, {1: 2}) for items in calls])
