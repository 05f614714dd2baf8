"""Packages: what runs, what is trusted, what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import kiln
from kiln.build.limits import CompilerOutOfMemory
from kiln.packages.errors import DamagedPackage, ForeignPackage, UntrustedPackage
from kiln.packages.machine import LEVELS
from kiln.packages.manifest import MANIFEST
from kiln.programs.call.errors import BadExportArgument, WrongProgramInput
from kiln.programs.call.tensors import read_tensors
from kiln.support.target import cpu_flags
from tests.child import search_path
from tests.packages.samples import (
    Decoder,
    counted,
    decoder,
    manifest_of,
    members,
    repacked,
    shared,
    sharing,
    with_manifest,
    without_signature,
)
from tests.programs.models import Loss
from tests.programs.test_files import Everything, classifier

KEY = b"the maker's secret"


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A signed package of the classifier, and its digest."""
    path = tmp_path_factory.mktemp("packages") / "m.kiln"
    torch.manual_seed(0)
    return path, classifier().package(path, key=KEY)


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("kiln.native._frames", "kiln.capture", "kiln.graph", "kiln.loops", "kiln.pipeline",
                            "kiln.build", "kiln.api", "kiln.backends", "triton")):
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
import torch, kiln
"""


def test_a_fresh_process_runs_it_without_the_compiler(signed: tuple[Path, str], tmp_path: Path) -> None:
    path, digest = signed
    program = kiln.load(path)
    cases = []
    for rows in (2, 7, 64):
        x, mask = torch.randn(rows, 16), torch.randn(rows, 8)
        cases.append((x, mask, program(x, mask=mask)["logits"]))
    torch.save(cases, tmp_path / "cases")
    script = f"""{BLOCKED}
model = kiln.load({str(path)!r}, digest={digest!r}, key={KEY!r})
for x, mask, expected in torch.load({str(tmp_path / "cases")!r}):
    found = model(x, mask=mask)
    assert torch.equal(found["logits"], expected) and found["batch"] == 2 * len(x)
"""
    environment = {**os.environ, "PATH": "/nowhere", "PYTHONPATH": search_path()}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, cwd=tmp_path)


def test_results_are_those_of_eager(tmp_path: Path) -> None:
    """Dtypes, other layouts, complex weights, constants, gradients, sizes that data decide."""
    model, x = Everything(), torch.randn(6, 3)
    args = (x, torch.float64, float("inf"), "name")
    program = kiln.export(model, args, dynamic_shapes=({0: kiln.Dim("rows")}, None, None, None))
    program.package(tmp_path / "m")
    loaded = kiln.load(tmp_path / "m")
    for rows in (5, 6, 9):
        given = (torch.randn(rows, 3), *args[1:])
        found, expected = loaded(*given), model(*given)
        assert type(found) is OrderedDict and list(found) == list(expected)
        assert_close({k: v for k, v in found.items() if isinstance(v, torch.Tensor)},
                     {k: v for k, v in expected.items() if isinstance(v, torch.Tensor)}, equal_nan=True)  # fmt: skip
        assert found["n"] == "name" and found["device"] == torch.device("cpu")
    assert type(kiln.load(tmp_path / "m", plain=True)(*args)) is dict
    assert {name: tensor.stride() for name, tensor in loaded.state.items()} == {
        name: program.state[name].stride() for name in loaded.state
    }
    example = (torch.randn(7, 6), torch.randn(7, 3))
    training = kiln.export(Loss(), example, training=True)
    training.package(tmp_path / "l")
    assert_close(kiln.load(tmp_path / "l")(*example), training(*example))
    kiln.export(counted, (torch.tensor([1, 0, 3]),)).package(tmp_path / "n")
    for values in ([0, 2, 1], [0, 0, 0]):
        assert_close(kiln.load(tmp_path / "n")(torch.tensor(values)), counted(torch.tensor(values)))


def test_a_cache_of_keys_and_values_is_kept_between_calls(tmp_path: Path) -> None:
    model = Decoder()
    decoder(model).package(tmp_path / "m")
    one, other = kiln.load(tmp_path / "m"), kiln.load(tmp_path / "m")
    assert one.mutated == ["keys", "values"]
    with torch.no_grad():
        for position in range(5):
            x = torch.randn(1, 8)
            assert_close(one(x, torch.tensor([position])), model(x, torch.tensor([position])))
    assert_close(one.state["keys"], model.keys)
    assert not other.state["keys"].any(), "another load of the file has buffers of its own"
    assert not kiln.load(tmp_path / "m").state["keys"].any(), "the file does not change"


def test_memory_is_shared_as_in_eager(tmp_path: Path) -> None:
    sharing().package(tmp_path / "m")
    loaded = kiln.load(tmp_path / "m")
    found, expected = (run(torch.ones(6, 3), torch.ones(2)) for run in (loaded, shared))
    assert_close(found, expected)
    x, y = torch.ones(6, 3), torch.ones(2)
    tail, row, same, whole = loaded(x, y)
    assert whole is x and same is y and tail._base is x and row.data_ptr() == tail.data_ptr()
    assert x._version == 1
    for arguments, words in (
        ((x[:, :2], y), "dimension 1 of `x` is 2"),
        ((torch.ones(12, 6)[::2, ::2], y), "strides"),
        ((x, x[0, :2]), "share memory"),
        ((x[:1], y), "2 <= n"),
    ):
        with pytest.raises(WrongProgramInput, match=words):
            loaded(*arguments)


def test_weights_are_aligned_and_not_in_the_process_before_use(signed: tuple[Path, str]) -> None:
    loaded = kiln.load(signed[0])
    assert all(tensor.data_ptr() % 64 == 0 for tensor in loaded.state.values())
    safetensors = pytest.importorskip("safetensors.torch")
    stored = safetensors.load(members(signed[0])["weights.safetensors"])
    assert_close({name: stored[name] for name in loaded.state}, loaded.state)
    assert_close(read_tensors(members(signed[0])["weights.safetensors"]), stored)


def test_threads_share_a_program(signed: tuple[Path, str]) -> None:
    loaded = kiln.load(signed[0])
    given = [(torch.randn(rows, 16), torch.randn(rows, 8)) for rows in range(2, 34)]
    expected = [loaded(x, mask=mask)["logits"] for x, mask in given]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda pair: loaded(pair[0], mask=pair[1])["logits"], given * 4))
    assert all(map(torch.equal, found, expected * 4))


@pytest.mark.parametrize("level", LEVELS)
def test_levels_of_machines(level: str, tmp_path: Path) -> None:
    program = classifier()
    program.package(tmp_path / "m", f"cpu:{level}")
    if not cpu_flags() >= LEVELS[level][1]:
        with pytest.raises(ForeignPackage):
            kiln.load(tmp_path / "m")
        return
    x, mask = torch.randn(5, 16), torch.randn(5, 8)
    assert_close(kiln.load(tmp_path / "m")(x, mask=mask), program(x, mask=mask))


@pytest.mark.parametrize("target", ["cpu:x86-64-v9", "gpu", "cuda:sm_90", ""])
def test_targets_that_are_none(target: str, tmp_path: Path) -> None:
    with pytest.raises(BadExportArgument, match="target"):
        classifier().package(tmp_path / "m", target)
    assert not list(tmp_path.iterdir())


def test_equal_programs_are_equal_files(tmp_path: Path) -> None:
    program = sharing()
    digests = {program.package(tmp_path / name) for name in ("a", "b")}
    assert len(digests) == 1 and (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# Trust.


def test_who_vouches_for_a_package(signed: tuple[Path, str], tmp_path: Path) -> None:
    path, digest = signed
    copy = tmp_path / "m"
    copy.write_bytes(path.read_bytes())
    copy.chmod(0o666)
    with pytest.raises(UntrustedPackage, match="others may write it"):
        kiln.load(copy)
    for named in ({"digest": digest}, {"digest": digest.upper()}, {"key": KEY}, {"trust": True}):
        kiln.load(copy, **named)
    with pytest.raises(UntrustedPackage, match="digest is"):
        kiln.load(copy, digest="0" * 64, trust=True)
    with pytest.raises(UntrustedPackage, match="another key"):
        kiln.load(copy, key=b"other", trust=True)
    with pytest.raises(UntrustedPackage, match="not signed"):
        kiln.load(without_signature(path, copy), key=KEY)


def test_nothing_is_loaded_before_the_digests_are_right(
    signed: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("machine code is loaded")

    monkeypatch.setattr("kiln.packages.loader.Libraries", refused)
    for name, data in members(signed[0]).items():
        if name.endswith(".safetensors") or name == "signature":
            continue
        wrong = bytearray(data)
        wrong[len(wrong) // 2] ^= 1
        vouched = {"digest": signed[1]} if name == MANIFEST else {"trust": True}  # another manifest may be right too
        with pytest.raises((DamagedPackage, ForeignPackage, UntrustedPackage)):
            kiln.load(repacked(signed[0], {name: bytes(wrong)}, tmp_path / "m"), **vouched)


def test_weights_are_compared_where_a_package_is_named(signed: tuple[Path, str], tmp_path: Path) -> None:
    path, digest = signed
    weights = bytearray(members(path)["weights.safetensors"])
    weights[-1] ^= 1
    changed = repacked(path, {"weights.safetensors": bytes(weights)}, tmp_path / "m")
    kiln.load(changed, trust=True)
    for named in ({"digest": digest}, {"key": KEY}, {"trust": True, "check_weights": True}):
        with pytest.raises(DamagedPackage, match="weights"):
            kiln.load(changed, **named)
    kiln.load(changed, digest=digest, check_weights=False)


FOREIGN: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (lambda found: found["requirements"].update(torch="1.13"), "torch 1.13"),
    (lambda found: found["requirements"].update(architecture="riscv64"), "riscv64"),
    (lambda found: found["requirements"].update(steps=7), "plan format 7"),
    (lambda found: found["requirements"]["instructions"].append("quantum"), "quantum"),
    (lambda found: found.update(target="cuda:sm_99"), "sm_99"),
]


@pytest.mark.parametrize(("change", "words"), FOREIGN, ids=[words for _, words in FOREIGN])
def test_packages_for_other_machines(
    change: Callable[[dict[str, Any]], None], words: str, signed: tuple[Path, str], tmp_path: Path
) -> None:
    document = manifest_of(signed[0])
    change(document)
    with pytest.raises(ForeignPackage, match=words):
        kiln.load(with_manifest(signed[0], document, tmp_path / "m"), trust=True)


def test_files_that_are_no_packages(tmp_path: Path) -> None:
    for data in (b"", b"x", b"PK\5\6" + bytes(18), bytes(1000)):
        (tmp_path / "m").write_bytes(data)
        with pytest.raises(DamagedPackage):
            kiln.load(tmp_path / "m")
    with pytest.raises(DamagedPackage, match="regular"):
        kiln.load("/dev/null", trust=True)
    with pytest.raises(FileNotFoundError):
        kiln.load(tmp_path / "missing")


def test_a_compiler_without_memory_is_named(tmp_path: Path) -> None:
    program = kiln.export(lambda x: x.sin() * 3, (torch.ones(7),))
    options = {"compile_megabytes": 48, "cache_dir": str(tmp_path / "cache")}
    with pytest.raises(CompilerOutOfMemory, match="KILN4107"):
        program.package(tmp_path / "m", options=options)
