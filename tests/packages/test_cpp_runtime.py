"""The runtime for C++ and C (csrc/runtime), built by CMake as examples/cpp says, beside Python's results."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from tests.child import ROOT
from tests.packages.samples import manifest_of, members, with_manifest
from tests.programs.test_files import OTHER, changed, mutations, paths

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no CMake"),
]


class Net(nn.Module):
    """Own kernels, library calls, a buffer that calls read, a size, a constant and a float among the results."""

    offset: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)
        self.register_buffer("offset", torch.arange(4.0))

    def forward(self, x: Tensor) -> tuple[Tensor, int, str, Tensor, float]:
        hidden = nn.functional.gelu(self.first(x))
        return self.second(hidden).softmax(-1) + self.offset, x.shape[0] * 2, "name", hidden[1:], 1 / x.shape[0]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("build")
    prefix = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    source = ROOT / "tests" / "packages" / "cpp"
    subprocess.run(["cmake", "-S", source, "-B", folder, prefix], check=True, capture_output=True)
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
        done = run(built / "examples" / "serve", package, 8, rows, 16)
        assert done.returncode == 0, done.stderr
        expected = kiln.load(package)(x)[0].double().sum().item()  # type: ignore[index]
        assert abs(float(done.stdout.split()[2].strip(",")) - expected) < 1e-4 and " 0 wrong" in done.stdout


def test_a_call_from_c(built: Path, package: Path) -> None:
    done = run(built / "examples" / "call", package, 3, 16)
    expected = kiln.load(package)(torch.arange(48.0).div(8).view(3, 16))[0]  # type: ignore[index]
    *found, count, _ = done.stdout.split()
    torch.testing.assert_close(torch.tensor([*map(float, found)]), expected.flatten()[:4], atol=2e-5, rtol=0)
    assert count == "3" and done.returncode == 0


def test_what_cannot_run_says_so(built: Path, package: Path, tmp_path: Path) -> None:
    cases = [(run(built / "examples" / "serve", package, 1, 1, 16), "needs 2 <= rows <= 64"),
             (run(built / "examples" / "serve", package, 1, 8, 15), "expected Float[8, 16]"),
             (run(built / "examples" / "serve", tmp_path / "missing", 1, 8, 16), "No such file")]  # fmt: skip
    copy = tmp_path / "copy"
    copy.write_bytes(package.read_bytes())
    copy.chmod(0o666)
    cases.append((run(built / "examples" / "serve", copy, 1, 8, 16), "KILN6105"))
    for field, value in (("torch", "1.13"), ("architecture", "riscv64"), ("instructions", ["quantum"]), ("steps", 7)):
        document = manifest_of(package)
        document["requirements"][field] = value
        copy = with_manifest(package, document, tmp_path / field)
        copy.chmod(0o600)
        cases.append((run(built / "examples" / "serve", copy, 1, 8, 16), "KILN6104"))
    for done, words in cases:
        assert done.returncode == 1 and words in done.stderr, done


def read_mutated(built: Path, kind: str, *files: Path) -> list[str]:
    """Lines of `cpp/read_mutated.cpp`, which the sanitizers watch."""
    done = run(built / "read_mutated", kind, *files)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


def test_mutated_packages(built: Path, package: Path, tmp_path: Path) -> None:
    """Files with other bytes; then other fields in a manifest, with the digests of all members right."""
    document = manifest_of(package)
    files = [tmp_path / "renamed"]
    files[0].write_bytes(package.read_bytes().replace(b'"kind"', b'"kinb"'))
    for number, data in enumerate(mutations(package.read_bytes(), 2000, seed=3)):
        files.append(tmp_path / f"bytes{number}")
        files[-1].write_bytes(data)
    for number, place in enumerate(paths(document)):
        for value in (OTHER[number % len(OTHER)], OTHER[(number + 7) % len(OTHER)]):
            files.append(with_manifest(package, changed(document, place, value), tmp_path / f"field{len(files)}"))
    found = read_mutated(built, "packages", package, *files)
    assert found[0] == "ran" and "was changed" in found[1] and len(found) == len(files) + 1
    assert sum(line == "ran" or "KILN" in line for line in found) == len(found), {*found}


def test_numbers_of_inputs_that_a_package_does_not_take(built: Path, package: Path, tmp_path: Path) -> None:
    document = {**manifest_of(package), "written": [999]}
    file = with_manifest(package, document, tmp_path / "m")
    assert "KILN6103" in read_mutated(built, "packages", file)[0]


def test_json_is_what_python_reads(built: Path, package: Path, tmp_path: Path) -> None:
    """What is not refused has the same value; a name that stands twice is refused."""
    odd = json.dumps({"": [True, None, -(1 << 63), 1 << 63], '\u20ac\U0001f600\t"': {"x": [{}, []]}})
    texts = [members(package)["manifest.json"], odd.encode(), *ODD]
    texts += [made for seed, text in enumerate(texts) for made in mutations(text, 4000, seed)]
    texts = [text for text in texts if b"\0" not in text and text.decode(errors="ignore").encode() == text]
    file = tmp_path / "documents"
    file.write_bytes(b"\0".join(texts))
    found = read_mutated(built, "json", file)
    expected = [value_or_refused(text) for text in texts]
    wrong = [(text, left, right) for text, left, right in zip(texts, found, expected, strict=True) if left != right]
    assert not [each for each in wrong if each[1] != "refused"], wrong[:3]
    assert all(is_refused_here_only(text) for text, *_ in wrong), wrong[:3]
    assert 0.01 < sum(line != "refused" for line in found) / len(found) < 0.9


ODD = [
    b"007", b"-", b"-0", b"1.5", b"1e3", b"[1,]", b"[,1]", b'{"a":1,}', b'{"a":1,"a":2}', b"NaN", b"nul", b"[" * 300,
    b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\\ud83d\\u0041"', b'"\\x"', b'"a', b'"\\u12', b'"\n"', b" 1 \n", b"1 2",
    b"{1:2}",
]  # fmt: skip


def value_or_refused(text: bytes) -> str:
    try:
        return canonical(json.loads(text.decode()))
    except (ValueError, RecursionError):
        return "refused"


def canonical(value: Any) -> str:
    """As `canonical` of read_mutated.cpp."""
    match value:
        case None | bool():
            return json.dumps(value)
        case int():
            return str(value) if -(1 << 63) <= value < 1 << 63 else "wide"
        case str():
            return f"'{value.encode(errors='surrogatepass').hex()}'"
        case list():
            return "[" + "".join([canonical(item) + "," for item in value]) + "]"
        case dict():
            items = sorted((name.encode(errors="surrogatepass"), item) for name, item in value.items())
            return "{" + "".join([f"{name.hex()}:{canonical(item)}," for name, item in items]) + "}"
    return "fraction"


def is_refused_here_only(text: bytes) -> bool:
    """Whether it has a fraction, NaN, half of a character, depth, or a name twice."""
    seen: list[bool] = []

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        seen.append(len(dict(items)) < len(items))
        return dict(items)

    value = canonical(json.loads(text, object_pairs_hook=pairs))
    return any(seen) or "fraction" in value or "eda" in value or "edb" in value or text.count(b"[") > 200
