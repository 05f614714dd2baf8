"""Exceptions and generators: fields, contexts and causes, breaks in handlers, what generators are sent and thrown."""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import kiln
from tests.faults.outcome import assert_like_eager


def broken(x: Any) -> Any:
    """A graph break."""
    time.time()
    return x


def in_a_handler(x: Any) -> Any:
    try:
        raise ValueError("a")
    except ValueError as error:
        y = broken(x + 1) * 2
        return y, str(error), sys.exc_info()[1] is error


def nested_handlers(x: Any) -> Any:
    try:
        {}[1]
    except KeyError:
        y = broken(x + 1)
        try:
            raise ValueError("b")
        except ValueError as error:
            y = broken(y)
            return y * 2, repr(error.__context__), repr(error.__cause__), error.__suppress_context__


def in_finally(x: Any) -> Any:
    try:
        try:
            raise ValueError("b")
        finally:
            x = broken(x + 1) * 2
    except ValueError as error:
        return x, repr(error)


def called_in_a_handler(x: Any) -> Any:
    def inner(x: Any) -> Any:
        y = broken(x * 3)
        return y + 1, repr(sys.exc_info()[1])

    seen = []
    for turn in range(3):
        try:
            if turn == 1:
                raise ValueError("b")
            x = x + turn
        except ValueError:
            x, now = inner(x)
            seen.append(now)
        else:
            x = x * 2
    return x, seen, sys.exc_info()


def raises_behind_the_break(x: Any) -> Any:
    try:
        raise KeyError("k")
    except KeyError as error:
        try:
            time.sleep(-1)
        except ValueError as other:
            return x + 1, other.__context__ is error


class Manager:
    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def __enter__(self) -> Any:
        return broken(5)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.log.append(repr(error))
        broken(1)
        self.log.append(repr(sys.exc_info()[1]))
        return True


def manager_with_breaks(x: Any) -> Any:
    log: list[Any] = []
    with Manager(log) as five:
        x = x + five
        raise ValueError("in with")
    return x * 2, log, sys.exc_info()


def raised_again(x: Any) -> Any:
    def fails() -> None:
        try:
            raise KeyError("k")
        except KeyError:
            broken(1)
            raise

    try:
        fails()
    except KeyError as error:
        broken(1)
        return x - 1, repr(error), repr(error.__context__)


def branches_in_a_handler(x: Any) -> Any:
    try:
        raise KeyError("k")
    except KeyError:
        if time.time() > 0:
            x = x + 1
        for _ in [time.time(), 2.0]:
            x = x * 2
        if x.sum() > 0:
            x = x + 5
    return x, sys.exc_info()


def fields(x: Any) -> Any:
    made = [
        *(StopIteration(x), StopIteration(), OSError(2, "no", "file"), SystemExit(3), KeyError("k")),
        *(ImportError("m", name="n", path="p"), UnicodeDecodeError("utf-8", b"ab", 0, 1, "why")),
        *(AttributeError("a", name="q", obj=3), NameError("n", name="nn"), SyntaxError("m", ("f", 1, 2, "t"))),
    ]
    names = ("value", "errno", "filename", "code", "name", "path", "encoding", "object", "start", "obj", "lineno")
    found = [(type(error).__name__, name, getattr(error, name, "none")) for error in made for name in names]
    return found, [(str(error), repr(error)) for error in made[1:]], made[-1].args


def links(x: Any) -> Any:
    a, b = ValueError("a"), ValueError("b")
    before = a.__traceback__, a.__context__, a.__cause__, a.__suppress_context__, vars(a)
    try:
        try:
            raise a
        except ValueError:
            try:
                raise b from KeyError("c")
            except ValueError:
                raise a  # noqa: B904
    except ValueError as error:
        again = error is a
    return x, before, again, repr(a.__context__), repr(b.__context__), repr(b.__cause__), b.__suppress_context__


def wrong_raises(x: Any) -> Any:
    found = []

    def throws(what: Any) -> None:
        raise what

    calls = [
        *(lambda: ValueError(a=1), lambda: UnicodeDecodeError(1), lambda: ExceptionGroup("x", [])),  # type: ignore
        *(lambda: throws(1), lambda: throws(int), lambda: throws(None), lambda: throws(ValueError)),
    ]
    for call in calls:
        try:
            call()
        except Exception as error:
            found.append((type(error).__name__, str(error)))
    try:
        raise ValueError from 5  # type: ignore
    except Exception as error:
        found.append((type(error).__name__, str(error)))
    try:
        with 5:  # type: ignore
            pass
    except TypeError as error:
        found.append(("", str(error)))
    try:
        raise
    except RuntimeError as error:
        found.append(("", str(error)))
    return x, found


def groups(x: Any) -> Any:
    inner = ExceptionGroup("n", [ValueError(2), KeyError(3)])
    whole = BaseExceptionGroup("m", [ValueError(1), TypeError("t"), inner])
    match, rest = whole.split(ValueError)
    some = whole.subgroup(lambda error: isinstance(error, KeyError))
    return x, type(whole).__name__, str(whole), [repr(group) for group in (whole, match, rest, some)], whole.message


class Own(Exception):
    made = 0

    def __init__(self, a: Any) -> None:
        self.a = a
        super().__init__(a, 1)


def own_class(x: Any) -> Any:
    error = Own(x)
    error.add_note("first")
    broken(1)
    return error.a + 1, error.args, error.__notes__, vars(error)


def suspended(x: Any) -> Any:
    found: list[Any] = []

    def inner() -> Any:
        found.append((yield 1))
        try:
            b = yield 2
        except ValueError as error:
            found.append((repr(error), repr(error.__context__)))
            b = yield "caught"
        return b

    def outer() -> Any:
        found.append((yield from inner()))

    def stops() -> Any:
        raise StopIteration(5)
        yield

    def keeps() -> Any:
        try:
            yield 1
        except GeneratorExit:
            yield 2

    for make in (inner, outer):
        running = make()
        found += [running.gi_suspended, next(running), running.gi_suspended, running.send(7)]
        found.append(running.throw(ValueError("q")))
        try:
            running.send("end")
        except StopIteration as error:
            found.append(error.value)
    for call in (lambda: inner().send(1), lambda: next(stops()), lambda: inner().throw(int), lambda: next(running)):
        try:
            call()
        except Exception as error:
            found.append((repr(error), repr(error.__cause__)))
    kept = keeps()
    next(kept)
    try:
        kept.close()
    except RuntimeError as error:
        found.append(str(error))
    return x, found


class Delegate:
    def __init__(self) -> None:
        self.count = 0
        self.log: list[Any] = []

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        self.count += 1
        if self.count > 3:
            raise StopIteration("done")
        return self.count

    def send(self, value: Any) -> int:
        self.log.append(value)
        return next(self)

    def throw(self, *args: Any) -> str:
        self.log.append(repr(args))
        return "thrown"

    def close(self) -> None:
        self.log.append("close")


def delegated(x: Any) -> Any:
    found: list[Any] = []

    def outer(iterator: Any) -> Any:
        found.append((yield from iterator))

    first, second = Delegate(), Delegate()
    running = outer(first)
    found += [next(running), running.send(5), running.throw(ValueError(1)), next(running)]
    found.append(next(running, "over"))
    closed = outer(second)
    next(closed)
    closed.close()
    return x, found, first.log, second.log, list(outer([1, 2])), next(Delegate())


@contextlib.contextmanager
def logging(log: list[Any]) -> Iterator[int]:
    try:
        yield 5
    except ValueError as error:
        log.append(repr(error))
    finally:
        log.append("out")


def managers_of_contextlib(x: Any) -> Any:
    log: list[Any] = []
    with logging(log) as five:
        x = x + five
        raise ValueError("c")
    with contextlib.suppress(KeyError), logging(log):
        raise KeyError("d")
    stack = contextlib.ExitStack()
    with contextlib.suppress(ValueError), stack:
        stack.callback(log.append, 1)
        raise ValueError("q")
    return x, log


PROGRAMS: list[Callable[[Any], Any]] = [
    *(in_a_handler, nested_handlers, in_finally, called_in_a_handler, raises_behind_the_break, manager_with_breaks),
    *(raised_again, branches_in_a_handler, fields, links, wrong_raises, groups, own_class, suspended, delegated),
    managers_of_contextlib,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_in_eager(program: Callable[[Any], Any]) -> None:
    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    for _ in range(2):
        assert_like_eager(compiled, program, torch.arange(4.0))
    assert not kiln.report_of(compiled).eager_reasons
    assert sys.exc_info() == (None, None, None)


def test_what_the_caller_handles_is_seen() -> None:
    def program(x: Any) -> Any:
        try:
            raise ValueError
        except ValueError as error:
            return x + 1, repr(error.__context__)

    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    assert_like_eager(compiled, program, torch.ones(2))
    try:
        raise KeyError("outside")
    except KeyError:
        assert_like_eager(compiled, program, torch.ones(2))


class Exit:
    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        held = (trace, [])
        self.seen.append((kind, str(error), broken(len(held))))
        return True


def test_an_exit_that_keeps_the_traceback_is_called_in_python() -> None:
    def program(x: Any) -> Any:
        seen: list[Any] = []
        with Exit(seen):
            raise ValueError("a")
        return x + 1, [text for _, text, _ in seen], sys.exc_info()

    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    for _ in range(2):
        assert_like_eager(compiled, program, torch.ones(2))


def raises(x: Any) -> Any:
    raise ValueError("deep")


def test_tracebacks_lead_to_the_lines_of_the_program() -> None:
    def program(x: Any) -> Any:
        try:
            try:
                raises(x)
            except ValueError:
                broken(1)
                raise
        except ValueError as error:
            trace = error.__traceback__
        broken(1)
        found = traceback.extract_tb(trace)
        return x + 1, found[-1].name, found[-1].lineno, found[0].lineno, found[-1].filename

    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    for _ in range(2):
        assert_like_eager(compiled, program, torch.ones(2))


@pytest.mark.parametrize("fullgraph", [False, True])
def test_an_error_that_numbers_decide_is_the_program_s_own(fullgraph: bool) -> None:
    def program(x: Any, by: float) -> Any:
        return x * (1.0 / by)

    compiled = kiln.compile(program, fullgraph=fullgraph)
    for by in (2.0, 4.0, 0.0, 5.0, 0.0):
        assert_like_eager(compiled, program, torch.ones(2), by)


def smallest_raised(x: torch.Tensor, n: int) -> torch.Tensor:
    raise ValueError(min(n, n), x.shape)


@pytest.mark.parametrize("dynamic", [None, True])
def test_an_exception_of_a_number_that_is_still_open(dynamic: bool | None) -> None:
    compiled = kiln.compile(smallest_raised, dynamic=dynamic)
    for number in (1, 2, 3):
        with pytest.raises(ValueError) as found:
            compiled(torch.ones(2), number)
        assert found.value.args == (number, (2,))


def unequal_lengths(*lists: list[int]) -> Any:
    iterators = [iter(items) for items in lists]
    try:
        found: Any = list(zip(*iterators, strict=True))
    except ValueError as error:
        found = str(error)
    return found, [list(rest) for rest in iterators]


def test_a_strict_zip_says_which_argument_is_shorter_or_longer() -> None:
    def program(x: torch.Tensor) -> Any:
        lists = [([1], [1, 2]), ([1, 2], [1]), ([1, 2], [1, 2], [1]), ([1], [1], [1, 2, 3]), ([], [], [3], [4]), ([1],)]
        return [unequal_lengths(*given) for given in lists], x + 1

    compiled = kiln.compile(program, fullgraph=True)
    assert compiled(torch.ones(2))[0] == program(torch.ones(2))[0]


class Second:
    def __index__(self) -> int:
        return 2


@pytest.mark.parametrize(
    "start",
    [0, True, Second(), 2.5, "1", None, torch.tensor(3), torch.tensor(0.5)],
    ids=lambda start: type(start).__name__,
)
def test_enumerate_begins_at_an_integer(start: Any) -> None:
    def program(x: torch.Tensor, start: Any) -> Any:
        return x + 1, list(enumerate("ab", start))

    assert_like_eager(kiln.compile(program), program, torch.ones(2), start)
