"""Mutated packages: a clear error or an equal result, never a crash."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from kiln.packages.errors import DamagedPackage, ForeignPackage
from kiln.packages.loader import PackagedProgram
from kiln.support.errors import KilnError
from tests.child import ROOT, search_path
from tests.packages.samples import (
    Decoder,
    counted,
    decoder,
    manifest_of,
    members,
    repacked,
    sharing,
    with_manifest,
)
from tests.programs.test_files import OTHER, changed, classifier, mutations, paths

Sample = tuple[Path, Callable[[PackagedProgram], Any], Any]

REFUSED = (KilnError, RuntimeError, ValueError, TypeError, LookupError)
"""Of a call of a package whose manifest says something else than it was made with: a step met what it does not take."""


def samples(folder: Path) -> Iterator[Sample]:
    """Packages with a call and its result."""
    torch.manual_seed(0)
    x, mask = torch.randn(5, 16), torch.randn(5, 8)
    row, rows = torch.randn(1, 8), torch.ones(5, 3)
    calls: dict[str, tuple[kiln.Program, Callable[[PackagedProgram], Any]]] = {
        "classifier": (classifier(), lambda loaded: loaded(x, mask=mask)["logits"]),
        "decoder": (decoder(Decoder()), lambda loaded: loaded(row, torch.tensor([2]))),
        "sharing": (sharing(), lambda loaded: loaded(rows.clone(), torch.ones(2))[0]),
        "counted": (kiln.export(counted, (torch.tensor([1, 2]),)), lambda loaded: loaded(torch.tensor([3, 1]))[0]),
    }
    for name, (program, call) in calls.items():
        path = folder / f"{name}.kiln"
        program.package(path, key=b"key")
        yield path, call, call(kiln.load(path))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    return list(samples(tmp_path_factory.mktemp("packages")))


def refused_or_equal(path: Path, call: Callable[[PackagedProgram], Any], expected: Tensor) -> bool:
    """Whether the file is refused."""
    try:
        loaded = kiln.load(path, trust=True, check_weights=True)
    except (DamagedPackage, ForeignPackage):
        return True
    assert torch.equal(call(loaded), expected)
    return False


def runs_or_raises(path: Path, call: Callable[[PackagedProgram], Any]) -> None:
    """Weights that are not compared are data: other values, no crash."""
    with contextlib.suppress(*REFUSED):
        call(kiln.load(path, trust=True))


def mutate(packages: list[Sample], folder: Path, count: int, seed: int = 0) -> float:
    """The share of `count` mutated files that is refused."""
    refused = 0
    for number, (path, call, expected) in enumerate(packages):
        for made in mutations(path.read_bytes(), count // len(packages), seed + number):
            file = folder / "mutated"
            file.write_bytes(made)
            refused += refused_or_equal(file, call, expected)
            runs_or_raises(file, call)
    return refused / count


def test_mutated_files(packages: list[Sample], tmp_path: Path) -> None:
    assert mutate(packages, tmp_path, 240) > 0.9


def test_a_name_that_was_changed_in_the_file(packages: list[Sample], tmp_path: Path) -> None:
    """No digest covers the manifest of a package without a key."""
    file = tmp_path / "changed"
    file.write_bytes(packages[0][0].read_bytes().replace(b'"logits"', b'"logitz"'))
    with pytest.raises(DamagedPackage, match="was cut off or changed"):
        kiln.load(file, trust=True)


LONG = """
import sys, tempfile
from pathlib import Path
from tests.packages.test_package_files import mutate, samples
folder = Path(tempfile.mkdtemp())
print(mutate(list(samples(folder)), folder, int(sys.argv[1]), seed=int(sys.argv[2])))
"""


@pytest.mark.slow
def test_ten_thousand_mutated_files() -> None:
    environment = {"PYTHONPATH": search_path(), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", LONG, "10000", "1"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and float(done.stdout) > 0.9, done.stderr[-2000:]


def test_every_field_of_the_manifest(packages: list[Sample], tmp_path: Path) -> None:
    """The digests of the other members are right: only the checks of the fields are left."""
    path, call, expected = packages[0]
    document = manifest_of(path)
    places = paths(document)
    refusals = missing = 0
    for number, place in enumerate(places[1:]):
        value = OTHER[number % len(OTHER)]
        file = with_manifest(path, changed(document, place, value), tmp_path / "changed")
        try:
            found = call(kiln.load(file, trust=True))
            assert not isinstance(found, Tensor) or found.shape == expected.shape
        except REFUSED:
            refusals += 1
        parent = document
        for key in place[:-1]:
            parent = parent[key]
        if isinstance(parent, dict) and number % 4 == 0:
            rest = {key: item for key, item in parent.items() if key != place[-1]}
            file = with_manifest(path, changed(document, place[:-1], rest), tmp_path / "changed")
            with pytest.raises((DamagedPackage, ForeignPackage)):
                kiln.load(file, trust=True)
            missing += 1
    assert refusals > 0.5 * len(places) and missing > 20


HEADERS: list[Any] = [[], {}, {"x": {}}, {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 1 << 60]}}]


@pytest.mark.parametrize("header", HEADERS)
def test_weights_that_are_not_those_of_the_program(header: Any, packages: list[Sample], tmp_path: Path) -> None:
    path = packages[0][0]
    text = json.dumps(header).encode()
    weights = len(text).to_bytes(8, "little") + text + bytes(64)
    document = manifest_of(path)
    document["parts"]["weights.safetensors"]["length"] = len(weights)
    changed_ = repacked(path, {"weights.safetensors": weights}, tmp_path / "one")
    with pytest.raises(DamagedPackage):
        kiln.load(with_manifest(changed_, document, tmp_path / "two"), trust=True)


def test_sizes_of_weights_are_compared_with_the_program(packages: list[Sample], tmp_path: Path) -> None:
    """A spec larger than what the file has, with consistent lengths, never reaches a kernel."""
    path, call, _ = packages[0]
    for sizes, strides in (([80, 16], [16, 1]), ([8, 16], [1600, 1]), ([8, 16], [1, 8]), ([16, 8], [8, 1])):
        document = manifest_of(path)
        document["inputs"][0]["spec"].update(sizes=sizes, strides=strides)
        with pytest.raises(KilnError):
            call(kiln.load(with_manifest(path, document, tmp_path / "m"), trust=True))


def test_a_member_that_lies_elsewhere(packages: list[Sample], tmp_path: Path) -> None:
    """The offsets and lengths of the zip's directory."""
    data = packages[0][0].read_bytes()
    start = data.rindex(b"PK\1\2")
    for offset in range(start, len(data), 3):
        made = bytearray(data)
        made[offset] ^= 0x7F
        (tmp_path / "m").write_bytes(made)
        refused_or_equal(tmp_path / "m", *packages[0][1:])
    assert set(members(packages[0][0])) > {"program.bin", "plan.json"}


def test_the_runtime_for_cpp_includes_no_python() -> None:
    """What examples/cpp/CMakeLists.txt compiles; the build itself is a slow test."""
    root = Path(__file__).resolve().parents[2]
    names = re.search(r'set\(PYTHON "([^"]+)"\)', (root / "examples" / "cpp" / "CMakeLists.txt").read_text())
    assert names
    files = [path for path in (root / "csrc" / "executor").glob("*.cpp") if path.stem not in names[1].split("|")]
    files += (root / "csrc" / "runtime").glob("*.cpp")
    seen: set[Path] = set()
    while files:
        path = files.pop()
        if path not in seen and path.exists():
            seen.add(path)
            included = re.findall(r'#include [<"]([^>"]+)[>"]', path.read_text())
            assert "Python.h" not in included, path
            files += [root / "csrc" / name for name in included] + [path.parent / name for name in included]
    assert len(seen) > 20
