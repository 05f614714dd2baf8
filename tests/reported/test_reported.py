"""Every program of the tables gives what eager gives, called several times, with fixed and with symbolic sizes.

A sample runs always, each in one of the two forms; the other programs and forms are `slow`.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import kiln
from tests.reported.observe import Seen, differences, observe
from tests.reported.registry import Compile, Programs, Reported

TABLES: list[Programs] = [
    importlib.import_module(f"tests.reported.{path.stem}").PROGRAMS
    for path in sorted(Path(__file__).parent.glob("*.py"))
    if path.stem not in ("__init__", "observe", "registry", "test_reported")
]
PROGRAMS = {f"{table.subject}: {reported.name}": reported for table in TABLES for reported in table.items}
FORMS: dict[str, dict[str, Any]] = {"auto": {}, "dynamic": {"dynamic": True}}
DIFFERENT = {
    "aliasing: an assignment to itself": "`x.copy_(x)` is not seen as a write: the version stays",
    "aliasing: fill of a view of a new tensor": "a result whose base nobody holds has memory of its own, with offset 0",
    "special values: gelu of infinity": "eager's vectors give NaN for gelu(inf), its single elements inf",
    "special values: fmod of denormals": "eager's vectors give NaN for fmod(3e38, 1e-40), its single elements a number",
    "special values: hardtanh of nan, backward": "eager gives NaN no gradient in vectors, but in single elements",
}
"""Programs that differ from eager, and why; all others agree."""


def eager(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return function


def compiler(form: str) -> Compile:
    def compile(function: Callable[..., Any], **options: Any) -> Any:
        return kiln.compile(function, **FORMS[form], **options)

    return compile


def observed(reported: Reported, compile: Compile) -> list[Seen]:
    torch.manual_seed(0)
    return [observe(value) for value in reported.run(compile)]


def check(name: str, form: str) -> None:
    expected = observed(PROGRAMS[name], eager)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message=".*KILN9")
        found = observed(PROGRAMS[name], compiler(form))
    assert len(found) == len(expected)
    different = [
        f"observation {number}: {text}"
        for number, (ours, theirs) in enumerate(zip(found, expected, strict=True))
        for text in differences(theirs, ours, PROGRAMS[name].signed_zeros)
    ]
    if different:
        pytest.fail("\n".join(different), pytrace=False)


def test_names_are_unique() -> None:
    assert len(PROGRAMS) == sum(len(table.items) for table in TABLES)


def forms_of(name: str) -> tuple[str, str]:
    """The form that is tested always, and the other: by the length of the name, so that both are used."""
    first, second = FORMS
    return (first, second) if len(name) % 2 else (second, first)


AGREEING = [name for name in PROGRAMS if name not in DIFFERENT]
SAMPLE = {name for n, name in enumerate(AGREEING) if n % 4 == 0 or not PROGRAMS[name].sizes}
"""All programs with a state, and each fourth of the others."""


def marked(name: str, slow: bool) -> Any:
    return pytest.param(name, marks=pytest.mark.slow) if slow else name


@pytest.mark.parametrize("name", [marked(name, name not in SAMPLE) for name in AGREEING])
def test_reported(name: str) -> None:
    check(name, forms_of(name)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", AGREEING)
def test_reported_in_the_other_form(name: str) -> None:
    check(name, forms_of(name)[1])


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_still_does(name: str) -> None:
    with pytest.raises(pytest.fail.Exception):
        check(name, "auto")
