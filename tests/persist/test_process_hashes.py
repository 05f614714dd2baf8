"""Hashes of texts, addresses and orders of sets are those of the process that runs a stored variant."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kiln
from kiln.api.compiler import SHARED
from kiln.runtime.guards import process

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
import torch, kiln

class Plain: pass

PROGRAMS = {
    "order": lambda x: [len(name) for name in {"b", "aa", "ccc", "dddd"}],
    "text": lambda x: str(frozenset(["k1", "k2", "k3", "k4"])),
    "union": lambda x: list({"a", "b"} | {"c", "d"}),
    "hash": lambda x: x + hash("abc") % 1000,
    "hash of a tuple": lambda x: hash(("a", 1)),
    "hash of a class": lambda x: hash(Plain),
    "order of classes": lambda x: [kind.__name__ for kind in {Plain, int, str, float}],
    "numbers": lambda x: [hash(7), *{3, 1, 2}],
}
for name, program in PROGRAMS.items():
    program.__qualname__ = name
    compiled = kiln.compile(program, options={"cache": True, "cache_dir": sys.argv[1]})
    equal = str(compiled(torch.zeros(2))) == str(program(torch.zeros(2)))
    print(name, "equal" if equal else "differs", kiln.report_of(compiled).loaded, sep=": ")
"""


def lines(folder: Path, seed: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
    command = [sys.executable, str(folder / "program.py"), str(folder / "cache")]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.splitlines()


def test_another_process_has_its_own_hashes(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    assert all(": equal: 0" in line for line in lines(tmp_path, "1"))
    again = lines(tmp_path, "2")
    stored = ("hash of a class", "numbers")  # the one is asked when the code runs, the others are those of any process
    assert len(again) == 8 and all(f": equal: {int(line.startswith(stored))}" in line for line in again), again
    assert lines(tmp_path, "2")[:5] == [line.replace(": 0", ": 1") for line in again[:5]]


def first(x: torch.Tensor) -> list[str]:
    return list({"b", "aa", "ccc"})


def holds(x: torch.Tensor) -> bool:
    return "b" in {"b", "aa", "ccc"}


@pytest.mark.parametrize("program, loaded", [(first, 0), (holds, 1)])
def test_only_what_is_seen_of_a_hash_counts(
    program: object, loaded: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for expected in (0, loaded):
        SHARED.clear()
        compiled = kiln.compile(program, options={"cache": True, "cache_dir": str(tmp_path)})  # type: ignore[call-overload]
        compiled(torch.zeros(2))
        assert kiln.report_of(compiled).loaded == expected
        monkeypatch.setattr(process, "TEXT_HASHES", process.TEXT_HASHES + 1)


class Plain:
    pass


class Hashed:
    def __hash__(self) -> int:
        return 7


PLAIN, LAYER, HASHED = Plain(), torch.nn.Linear(2, 2), Hashed()


def test_hashes_by_address() -> None:
    """Of the object, not of what stands in its place while tracing."""
    for program in (
        lambda x: hash(LAYER),
        lambda x: hash(PLAIN) == PLAIN.__hash__() == object.__hash__(PLAIN),
        lambda x: LAYER.__hash__() == hash(LAYER),
        lambda x: {hash(LAYER): 1}.get(LAYER.__hash__()),
        lambda x: (hash(HASHED), object.__hash__(HASHED)),
        lambda x: hash(Plain),
    ):
        compiled = kiln.compile(program)
        for _ in range(2):
            assert compiled(torch.zeros(2)) == program(torch.zeros(2))
