"""Compiled functions are objects like the originals: pickles, copies, signatures, names."""

from __future__ import annotations

import inspect
import pickle
import re
import sysconfig
import typing
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import kiln
import kiln.native
from tests.user import loaders
from tests.user.conftest import Run

ROWS = [torch.full((3,), float(row)) for row in range(4)]


def test_pickles() -> None:
    assert pickle.loads(pickle.dumps(loaders.decorated)) is loaders.decorated
    method = pickle.loads(pickle.dumps(loaders.Collate(4.0).method))
    assert method.__func__ is loaders.Collate.method and method.__self__.factor == 4.0
    again = pickle.loads(pickle.dumps(loaders.wrapped))
    assert again is not loaders.wrapped and again.__wrapped__ is loaders.plain
    assert kiln.api.session_of(again).settings.options == kiln.api.session_of(loaders.wrapped).settings.options
    torch.testing.assert_close(again(ROWS)[0], torch.stack(ROWS) * 3)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(kiln.compile(lambda x: x))


@pytest.mark.parametrize("start", ["spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_worker_processes_of_a_data_loader(run: Run, start: str) -> None:
    run(
        f"""
        import torch
        from torch.utils.data import DataLoader
        from tests.user import loaders
        ROWS = [torch.full((3,), float(row)) for row in range(4)]
        if __name__ == "__main__":
            for function in (loaders.decorated, loaders.wrapped, loaders.Collate(4.0).method):
                loader = DataLoader(ROWS, 2, num_workers=1, collate_fn=function, multiprocessing_context="{start}")
                for (batch, compiled), rows in zip(loader, (ROWS[:2], ROWS[2:]), strict=True):
                    assert compiled and torch.equal(batch, function(rows)[0]), (batch, compiled)
        """
    )


def test_signatures_and_help() -> None:
    def function(x: Tensor, *rest: int, factor: float = 2.0) -> Tensor:
        """Scale a tensor."""
        return x * factor

    compiled: Any = kiln.compile(function)
    assert inspect.signature(compiled) == inspect.signature(function)
    assert inspect.getdoc(compiled) == "Scale a tensor." and inspect.getsource(compiled) == inspect.getsource(function)
    assert typing.get_type_hints(compiled) == typing.get_type_hints(function)
    assert compiled.__qualname__ == function.__qualname__ and inspect.unwrap(compiled) is function
    model = nn.Linear(2, 3)
    for question in (inspect.signature, inspect.getdoc, lambda it: inspect.signature(it.forward)):
        assert question(kiln.compile(model)) == question(model)


def test_names_of_the_package() -> None:
    assert set(kiln.__all__) <= set(dir(kiln))
    for name in kiln.__all__:
        value = getattr(kiln, name)
        assert inspect.getdoc(value), name
        assert name in ("Options", "distributed") or inspect.signature(value)


def test_a_loader_in_this_process() -> None:
    for batch, compiled in DataLoader(ROWS, 2, collate_fn=loaders.decorated):
        assert compiled and batch.shape == (2, 3)


def test_an_unknown_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kiln.native.problem() == ""
    monkeypatch.setattr(kiln.native, "PYTHONS", ((3, 98), (3, 99)))
    assert re.fullmatch(r"CPython 3\.\d+ is not supported yet, 3\.98 and 3\.99 are", kiln.native.problem())


def test_a_free_threaded_python_runs_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", {"Py_GIL_DISABLED": 1}.get)
    assert kiln.native.problem().startswith("free-threaded builds of CPython are not supported")


def test_another_torch_than_that_of_the_build_runs_eager(run: Run) -> None:
    """One warning that names both versions, and eager's results."""
    program = """
        import torch, warnings
        torch.__version__ = "2.12.7" if torch.__version__.startswith("2.11.") else "2.11.7"
        import kiln
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                assert kiln.compile(torch.sin)(torch.zeros(1)) == 0
        print(len(caught), caught[0].message)
        assert "does nothing in this process" in kiln.report_of(torch.sin).text()
    """
    printed = run(program).stdout
    assert printed.startswith("1 KILN5011")
    assert re.search(r"built for torch 2\.\d+\.\d+\S*, and this is torch 2\.1[12]\.7", printed), printed
