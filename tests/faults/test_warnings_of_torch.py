"""What torch warns of is given in each call, at the line of the program, as often as in eager."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kiln
from kiln.runtime.heard_warnings import hearing

Program = Callable[[Tensor], object]
X = torch.arange(8.0).reshape(2, 4)


def implicit_dim(x: Tensor) -> Tensor:
    return F.softmax(x)


def in_a_callee(x: Tensor) -> Tensor:
    for _ in range(2):
        x = implicit_dim(x)
    return F.mse_loss(x, x[:1])


def in_torch_itself(x: Tensor) -> Tensor:
    return F.mse_loss(x, x, size_average=False)


def of_a_kernel(x: Tensor) -> Tensor:
    return x[:1].var(0) + x[torch.tensor([1, 0], dtype=torch.uint8)]


def of_a_copy(x: Tensor) -> Tensor:
    return torch.tensor(x) + torch.range(0, 3)


def behind_a_break(x: Tensor) -> Tensor:
    print(x.sum().item(), end="")
    return F.mse_loss(x, x[:1])


class Losses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.softmax = nn.Softmax()
        self.loss = nn.MSELoss()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.loss(self.softmax(x), x[:1])
        return y


def ignoring(x: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = F.softmax(x)
        warnings.warn("mine", stacklevel=1)
    return y + F.mse_loss(y, x[:1])


def ignoring_some(x: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Implicit dimension")
        return F.softmax(x)


def recording(x: Tensor) -> Tensor:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        y = F.softmax(x)
    return y * len(found)


def catching(x: Tensor) -> Tensor:
    try:
        return F.softmax(x)
    except UserWarning:
        return x


PROGRAMS = (implicit_dim, in_a_callee, in_torch_itself, of_a_kernel, of_a_copy, behind_a_break, Losses(),
            ignoring, ignoring_some, recording, catching)  # fmt: skip


def warned(program: Program, action: str) -> list[object]:
    """The results of three calls, and their warnings with their lines."""
    found: list[object] = []
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter(action)  # type: ignore[arg-type]
        for call in range(3):
            try:
                found.append(program(X + call))
            except UserWarning as error:
                found.append(str(error))
    found += [(str(entry.message), entry.category, entry.filename, entry.lineno) for entry in given]
    return found


@pytest.mark.parametrize("action", ["always", "default", "error"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_lines_and_numbers_of_warnings(program: Program, action: str) -> None:
    expected = warned(program, action)
    assert len(expected) > 3 or action == "error" or program in (ignoring_some, recording, catching)
    assert repr(warned(kiln.compile(program, options={"cache": False}), action)) == repr(expected)


@pytest.mark.parametrize("program", [implicit_dim, in_a_callee, ignoring, ignoring_some])
def test_they_break_no_graph(program: Program) -> None:
    compiled = kiln.compile(program, options={"cache": False})
    warned(compiled, "always")
    assert not kiln.report_of(compiled).breaks


def seldom(x: Tensor) -> Tensor:
    return torch.where(torch.ones(4, dtype=torch.uint8), x, x.T.reshape(2, 4))


def test_what_is_given_once_in_a_process_is_given_once() -> None:
    compiled = kiln.compile(seldom, options={"cache": False})
    torch.set_warn_always(True)
    try:
        every = warned(compiled, "always")
    finally:
        torch.set_warn_always(False)
    assert len([entry for entry in every if isinstance(entry, tuple)]) == 3
    first = [entry for entry in warned(seldom, "always") if isinstance(entry, tuple)]
    later = [
        entry for entry in warned(kiln.compile(seldom, options={"cache": False}), "always") if isinstance(entry, tuple)
    ]
    assert len(first) <= 1 and not later


def test_a_compile_does_not_make_others_appear_again() -> None:
    def mine() -> None:
        warnings.warn("mine", stacklevel=1)

    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("default")
        mine()
        kiln.compile(lambda x: sorted([str(len(x)), "b"]) and F.softmax(x, -1), options={"cache": False})(X)
        mine()
    assert [str(entry.message) for entry in given] == ["mine"]


def test_threads_that_hear_at_once_leave_warnings_as_they_were() -> None:
    """The first to begin ended first, and what the other put back was the first one's."""
    before, begun, ended = (warnings.filters, warnings._showwarnmsg), threading.Event(), threading.Event()  # type: ignore[attr-defined]

    def first() -> None:
        with hearing():
            begun.set()
            ended.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    begun.wait(10)
    with pytest.warns(UserWarning, match="of this thread"):
        warnings.warn("of this thread", stacklevel=1)
    with hearing() as heard:
        ended.set()
        thread.join()
        warnings.warn("heard", stacklevel=1)
    assert [warning.text for warning in heard] == ["heard"]
    assert (warnings.filters, warnings._showwarnmsg) == before  # type: ignore[attr-defined]


def given(call: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [str(warning.message) for warning in found]


SPREADS: list[Program] = [
    torch.std,
    lambda x: x.var(0),
    lambda x: torch.var_mean(x, 0)[1],
    lambda x: x.std(correction=2),
    lambda x: x.std(correction=0),
]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", SPREADS)
def test_a_spread_of_too_few_numbers_warns_with_sizes_that_change(program: Program, dynamic: bool | None) -> None:
    compiled = kiln.compile(program, dynamic=dynamic)
    for size in (3, 1, 2, 1, 5, 4, 1):
        x = torch.arange(float(size))
        assert given(lambda x=x: compiled(x)) == given(lambda x=x: program(x)), size  # type: ignore[misc]
    assert kiln.report_of(compiled).compiles <= 3
