"""Wrong arguments of kiln.compile: the error names the argument and what is allowed."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import kiln
from kiln.api.arguments import BadArgument, check_flag, read_options
from kiln.backends import find_backend
from kiln.backends.registry import UnknownBackend
from kiln.support.options import BadOption, Options, UnknownOption


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KILN_OPTIONS", raising=False)


def test_defaults() -> None:
    assert read_options(None, None, None) == Options()


def test_dynamic_argument_wins() -> None:
    assert read_options(None, {"dynamic": "never"}, True).dynamic == "always"


def test_mode_is_a_set_of_options() -> None:
    assert read_options("reduce-overhead", None, None).cuda_graphs


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_OPTIONS", "recompute=none, variants=3, cache=false")
    options = read_options(None, None, None)
    assert (options.recompute, options.variants, options.cache) == ("none", 3, False)


@pytest.mark.parametrize(
    ("mode", "options", "dynamic", "error", "words"),
    [
        ("fast", None, None, BadArgument, "`mode`.*'reduce-overhead'"),
        ("default", {"variants": 3}, None, BadArgument, "`options`"),
        (None, {"variant": 3}, None, UnknownOption, "did you mean `variants`"),
        (None, {"dynamic": "sometimes"}, None, BadOption, "'auto', 'never', 'always'"),
        (None, {"variants": "three"}, None, BadOption, "type int"),
        (None, {"variants": 0}, None, BadOption, "at least 1"),
        (None, {"compile_workers": -1}, None, BadOption, "at least 0"),
        (None, None, 3, BadArgument, "True or False"),
    ],
)
def test_wrong_arguments(mode: object, options: object, dynamic: object, error: type, words: str) -> None:
    with pytest.raises(error, match=f"(?s){words}"):
        read_options(mode, options, dynamic)  # type: ignore[arg-type]


def test_every_option_is_read() -> None:
    """Every option has an effect."""
    sources = "\n".join(path.read_text() for path in Path(kiln.__file__).parent.rglob("*.py"))
    for option in fields(Options):
        assert re.search(rf"\boptions\.{option.name}\b", sources), option.name


def test_flags_are_bools() -> None:
    with pytest.raises(BadArgument, match="fullgraph"):
        check_flag("fullgraph", 1)


def test_unknown_backend_suggests_a_near_name() -> None:
    with pytest.raises(UnknownBackend, match="did you mean `eager`"):
        find_backend("eagr")
