"""Values of Python that programs return, read or make: each result is eager's, captured in one graph."""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import kiln
from tests.capture.conftest import Lab

X = torch.arange(4.0)


class Named(OrderedDict):  # type: ignore[type-arg]
    pass


class Plain(dict):  # type: ignore[type-arg]
    pass


class Open(set):  # type: ignore[type-arg]
    pass


class Attributes(dict):  # type: ignore[type-arg]
    """Its items are its attributes."""

    def __init__(self, **items: object) -> None:
        self.update(items)
        self.__dict__ = self


class Replaced(dict):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.early = 1
        self.__dict__ = self
        self.late = 2


def returns_deques(x: torch.Tensor) -> object:
    full, free = deque([1, 2, 3], 2), deque([1])
    full.append(4)
    free.extend((2, 3, 4))
    return x + 1, full, full.maxlen, free, free.maxlen


def pops_an_empty_deque(x: torch.Tensor) -> object:
    found = []
    for pop in (deque().pop, deque().popleft, deque([7]).pop):
        try:
            found.append(pop())
        except IndexError as error:
            found.append(str(error))
    return x + 1, found


def makes_subclasses(x: torch.Tensor) -> object:
    named = Named(a=1, b=2)
    named.move_to_end("a")
    plain, open_ = Plain(a=1), Open((1,))
    open_.add(2)
    kinds = isinstance(open_, set), isinstance(named, OrderedDict), isinstance(plain, OrderedDict)
    return x + 1, list(named), plain["a"], sorted(open_), kinds, hasattr(open_, "add"), hasattr(plain, "move_to_end")


def items_are_attributes(x: torch.Tensor) -> object:
    found = Attributes(late=2)
    found.own = 3
    return x + 1, found.late, found.own, found["own"], found["late"], sorted(found)


def reads_what_errors_hold(x: torch.Tensor) -> object:
    try:
        raise ValueError("a", 1)
    except ValueError as error:
        return x + 1, error.__cause__, error.args


def compares_classes(x: torch.Tensor) -> object:
    first, second, number = int, float, 3
    return (
        x + 1, first == int, first == second, first == number, number == first, first != "int",  # noqa: E721
        (first, 3) == (3, first), [first] == [int], first != second,
    )  # fmt: skip


def default_of_a_defaultdict(x: torch.Tensor) -> object:
    from collections import defaultdict

    counted: dict[str, list[int]] = defaultdict(list)
    counted["a"].append(1)
    plain: dict[str, int] = defaultdict(None, {"b": 1})
    try:
        plain["missing"]
    except KeyError as error:
        return x + 1, dict(counted), dict(plain), error.args
    return x + 1, "no error"


def compares_ordered_dicts(x: torch.Tensor) -> object:
    """Two of them are equal in one order only; with a dict the order does not matter."""
    named, other = Named(a=1, b=2), Named(b=2, a=1)
    ordered, swapped = OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)
    plain = {"b": 2, "a": 1}
    return (
        x + 1, named == other, ordered == swapped, named == ordered, ordered == other, named == plain, plain == ordered,
        ordered != swapped, [ordered] == [swapped], named == Named(a=1, b=2),
    )  # fmt: skip


def compares_classes_with_containers(x: torch.Tensor) -> object:
    first = int
    return x + 1, first == (1, 2), first == [], first == {}, first != {1}, (1, first) == (1, (int,))  # type: ignore[comparison-overlap]


def copies_subclasses(x: torch.Tensor) -> object:
    named = Named(b=1, a=2)
    copied = named.copy()
    copied["c"] = 3
    return x + 1, list(named), list(copied), isinstance(copied, Named), copied == OrderedDict(b=1, a=2, c=3)


def loses_what_was_set_before_the_items(x: torch.Tensor) -> object:
    """An instance dict that is replaced takes its attributes with it."""
    found = Replaced()
    return x + 1, hasattr(found, "early"), len(found), found.late


def generator_that_has_raised(x: torch.Tensor) -> object:
    def counted() -> Iterator[int]:
        yield 1
        raise ValueError

    counter, seen = counted(), []
    try:
        for number in counter:
            seen.append(number)
    except ValueError:
        seen.append(-1)
    return x + 1, seen, next(counter, 0), list(counter)


PROGRAMS: tuple[Callable[[torch.Tensor], Any], ...] = (
    returns_deques, pops_an_empty_deque, makes_subclasses, items_are_attributes, reads_what_errors_hold,
    compares_classes, default_of_a_defaultdict, compares_ordered_dicts, compares_classes_with_containers,
    copies_subclasses, loses_what_was_set_before_the_items, generator_that_has_raised,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_result_is_eagers(program: Callable[[torch.Tensor], Any]) -> None:
    expected, got = program(X), kiln.compile(program, backend="eager", fullgraph=True)(X)
    assert torch.equal(got[0], expected[0]) and got[1:] == expected[1:]
    assert [type(value) for value in got] == [type(value) for value in expected]


SCALES = {"a": 1.0, "b": 2.0}


def scaled(x: torch.Tensor, *, factor: float = 2.0) -> torch.Tensor:
    return x * factor


def compiled_times(
    program: Callable[..., Any], *calls: Callable[[], tuple[Any, ...]], dynamic: bool | None = None
) -> int:
    """How many graphs the calls needed; each result is eager's. A call gives the arguments."""
    captured: list[object] = []

    def backend(graph: Any, inputs: Any) -> Any:
        captured.append(graph)
        return graph.forward

    compiled = kiln.compile(program, backend=backend, dynamic=dynamic)
    for call in calls:
        arguments = call()
        torch.testing.assert_close(compiled(*arguments), program(*arguments))
    return len(captured)


def test_a_default_of_a_keyword_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed() -> tuple[torch.Tensor]:
        monkeypatch.setattr(scaled, "__kwdefaults__", {"factor": 3.0})
        return (X,)

    assert compiled_times(lambda x: scaled(x), lambda: (X,), lambda: (X,), changed, lambda: (X,)) == 2


def test_an_attribute_of_an_error_that_is_not_kept_is_not_missing() -> None:
    """`getattr` must not give the default for what eager has."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        try:
            raise ValueError
        except ValueError as error:
            return x + 1, getattr(error, "__suppress_context__", True)

    assert kiln.compile(program)(X)[1] is program(X)[1] is False


def test_the_length_of_a_dict_depends_on_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_value() -> tuple[torch.Tensor]:
        monkeypatch.setitem(SCALES, "a", 5.0)
        return (X,)

    def longer() -> tuple[torch.Tensor]:
        monkeypatch.setitem(SCALES, "c", 5.0)
        return (X,)

    def other_key() -> tuple[torch.Tensor]:
        monkeypatch.delitem(SCALES, "b")
        monkeypatch.setitem(SCALES, "z", 5.0)
        return (X,)

    assert compiled_times(lambda x: x * len(SCALES), lambda: (X,), other_value, other_key, longer) == 2


def test_equal_and_different_arguments() -> None:
    def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.clone() if x is y else x + 1
        return x + y

    y = torch.ones(4)
    assert compiled_times(both, lambda: (X, X), lambda: (X, y), lambda: (y, y), lambda: (y, X)) == 2


def test_the_larger_of_two_sizes_is_one_program() -> None:
    def larger(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum() * max(x.shape[0], y.shape[0]) + min(x.shape[0], y.shape[0])

    pairs = [(torch.ones(one), torch.ones(other)) for one, other in ((5, 7), (9, 4), (6, 6))]
    assert compiled_times(larger, *[lambda pair=pair: pair for pair in pairs], dynamic=True) == 1


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (2,)])
def test_the_condition_of_cond_is_one_element(shape: tuple[int, ...]) -> None:
    def program(x: torch.Tensor, pred: torch.Tensor) -> torch.Tensor:
        return torch.cond(pred, lambda x: x + 1, lambda x: x - 1, (x,))

    pred = torch.ones(shape, dtype=torch.bool)
    if shape == (2,):
        with pytest.raises(RuntimeError, match="pred"):
            kiln.compile(program)(X, pred)
    else:
        compiled = kiln.compile(program, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(X, pred), X + 1)


class Doubled(torch.autograd.Function):
    """Without a gradient nothing of it is differentiated, so it may also write its arguments."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise AssertionError("there is no backward")


def test_an_autograd_function_without_gradients_is_its_forward() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = Doubled.apply(w)
        return x + y.detach()

    compiled = kiln.compile(program, backend="eager", fullgraph=True)
    ours, eagers = (torch.ones(4, requires_grad=True) for _ in range(2))
    torch.testing.assert_close(compiled(X, ours), program(X, eagers))
    torch.testing.assert_close(ours, eagers)


def test_modes_are_as_before_where_a_capture_ends() -> None:
    """The code that was made sets them, when it is called."""

    def unbalanced(x: torch.Tensor) -> torch.Tensor:
        torch.set_grad_enabled(False)
        return x + 1

    capture = Lab().capture(unbalanced, {"x": X})
    assert capture.function is not None and torch.is_grad_enabled()


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = 3
        return x + self.count


def test_a_plain_attribute_of_a_module_is_set_in_one_step() -> None:
    """Not by the forty statements of `nn.Module.__setattr__`."""
    capture = Lab().capture(Counting.forward, {"self": Counting(), "x": X})
    assert capture.skipped is None and capture.steps < 20


class ErrorWithText(ValueError):
    def __str__(self):
        return "a text"


class ErrorWithRepr(ValueError):
    def __repr__(self):
        return "é"


@pytest.mark.parametrize(
    ("cls", "args"),
    [
        (ValueError, ()),
        (ValueError, (1, 2)),
        (KeyError, ("k",)),
        (ErrorWithText, (1,)),
        (ErrorWithRepr, ("a",)),
        (OSError, (2, "no", "file")),
    ],
    ids=lambda part: getattr(part, "__name__", ""),
)
def test_the_text_of_an_exception(cls, args):
    def program(x):
        try:
            raise cls(*args)
        except cls as error:
            return [
                str(error),
                repr(error),
                f"{error}",
                f"{error!r:>9}",
                f"{error!a}",
            ], x + 1

    compiled = kiln.compile(program, backend="eager")
    assert compiled(X)[0] == program(X)[0]
    assert compiled.report().eager == 0


def test_patterns_and_versions() -> None:
    """The cache of `re`, which tracing fills, is not guarded; `torch.__version__` is fixed."""

    def program(x: torch.Tensor) -> object:
        found = re.match(r"(\d+)\.(\d+)", torch.__version__)
        assert found is not None
        parts = (
            re.sub("a+", "b", "caaat"),
            re.findall("a", "banana"),
            [part.start() for part in re.finditer("n", "banana")],
        )
        return x + int(found.group(1)), parts, torch.__version__ >= "2.5", torch.__version__ >= (2, 5)

    re.purge()
    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    for _ in range(2):
        assert compiled(torch.ones(1)) == program(torch.ones(1))
    assert not compiled.report().breaks and not compiled.report().eager_reasons
