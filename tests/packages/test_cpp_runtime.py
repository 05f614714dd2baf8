"""The runtime for C++ and C (csrc/runtime), built by CMake as examples/cpp says, beside Python's results."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import kiln
from tests.child import ROOT
from tests.packages.samples import manifest_of, with_manifest
from tests.programs.test_files import mutations

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no CMake"),
]


class Net(nn.Module):
    """Own kernels, library calls, a buffer that calls read, a size and a constant among the results."""

    offset: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)
        self.register_buffer("offset", torch.arange(4.0))

    def forward(self, x: Tensor) -> tuple[Tensor, int, str, Tensor]:
        hidden = nn.functional.gelu(self.first(x))
        return self.second(hidden).softmax(-1) + self.offset, x.shape[0] * 2, "name", hidden[1:]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("build")
    prefix = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    subprocess.run(["cmake", "-S", ROOT / "examples" / "cpp", "-B", folder, prefix], check=True, capture_output=True)
    done = subprocess.run(["cmake", "--build", folder, "--parallel", "2"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return folder


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("package") / "m.kiln"
    torch.manual_seed(0)
    kiln.export(Net(), (torch.randn(8, 16),), dynamic_shapes={"x": {0: kiln.Dim("rows", min=2, max=64)}}).package(path)
    return path


def run(program: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [str(program), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_eight_threads_get_what_python_gets(built: Path, package: Path) -> None:
    for rows in (2, 16, 64):
        x = torch.arange(rows * 16, dtype=torch.float32).div(8).sin().view(rows, 16)
        done = run(built / "serve", package, 8, rows, 16)
        assert done.returncode == 0, done.stderr
        expected = kiln.load(package)(x)[0].double().sum().item()  # type: ignore[index]
        assert abs(float(done.stdout.split()[2].strip(",")) - expected) < 1e-4 and " 0 wrong" in done.stdout


def test_a_call_from_c(built: Path, package: Path) -> None:
    done = run(built / "call", package, 3, 16)
    expected = kiln.load(package)(torch.arange(48.0).div(8).view(3, 16))[0]  # type: ignore[index]
    *found, count, _ = done.stdout.split()
    torch.testing.assert_close(torch.tensor([*map(float, found)]), expected.flatten()[:4], atol=2e-5, rtol=0)
    assert count == "2" and done.returncode == 0


def test_what_cannot_run_says_so(built: Path, package: Path, tmp_path: Path) -> None:
    cases = [(run(built / "serve", package, 1, 1, 16), "needs 2 <= rows <= 64"),
             (run(built / "serve", package, 1, 8, 15), "expected Float[8, 16]"),
             (run(built / "serve", tmp_path / "missing", 1, 8, 16), "No such file")]  # fmt: skip
    copy = tmp_path / "copy"
    copy.write_bytes(package.read_bytes())
    copy.chmod(0o666)
    cases.append((run(built / "serve", copy, 1, 8, 16), "KILN6105"))
    for field, value in (("torch", "1.13"), ("architecture", "riscv64"), ("instructions", ["quantum"]), ("steps", 7)):
        document = manifest_of(package)
        document["requirements"][field] = value
        copy = with_manifest(package, document, tmp_path / field)
        copy.chmod(0o600)
        cases.append((run(built / "serve", copy, 1, 8, 16), "KILN6104"))
    for done, words in cases:
        assert done.returncode == 1 and words in done.stderr, done


def test_mutated_files_do_not_crash(built: Path, package: Path, tmp_path: Path) -> None:
    for data in mutations(package.read_bytes(), 60, seed=3):
        file = tmp_path / "m"
        file.write_bytes(data)
        file.chmod(0o600)
        done = run(built / "serve", file, 1, 8, 16)
        assert done.returncode == 0 or (done.returncode == 1 and "KILN" in done.stderr), done
