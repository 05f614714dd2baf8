"""Bundles, keys, and running without the compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kiln.plan.serialize import UnreadablePlan, decode_plan, encode_plan
from kiln.runtime import loader as plan_file
from kiln.runtime.cache.bundle import DamagedBundle, pack, unpack
from kiln.runtime.cache.key_builder import KeyBuilder, explain_miss, remember
from kiln.runtime.cache.store import DiskStore
from kiln.runtime.kernels import Libraries
from kiln.runtime.loader import WrongMachine, load_bundle, save_bundle
from kiln.tensor.encoding import decode_tensor, encode_tensor
from tests.runtime.samples import add_norm
from tests.runtime.test_plan_text import everything

SCRIPT = """
import sys, torch
from kiln.runtime.loader import load_bundle
loaded = load_bundle(open(sys.argv[1], "rb").read())
torch.manual_seed(0)
x, y, w = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8, 4)
assert torch.equal(loaded.executor()(x, y, w)[0], (x + y) @ w)
wrong = [name for name in sys.modules if name.startswith(("kiln.graph", "kiln.loops", "kiln.capture", "kiln.pipeline"))]
assert not wrong, wrong
assert not any("k_add" in line and "/kiln-kernels" in line for line in open("/proc/self/maps"))
print("ran")
"""


@pytest.mark.slow  # a process that imports torch
def test_a_bundle_runs_in_a_process_without_the_compiler(libraries: Libraries, tmp_path: Path) -> None:
    file = tmp_path / "model.kiln"
    file.write_bytes(save_bundle(add_norm(), libraries, {}))
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": os.getcwd(), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(file)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "ran", done.stderr


def test_bundles_are_deterministic_and_checked(libraries: Libraries) -> None:
    data = save_bundle(add_norm(), libraries, {})
    assert data == save_bundle(add_norm(), libraries, {})
    load_bundle(data)
    for bad in (b"", data[:-1], b"x" + data[1:], data[:200] + b"!" + data[201:]):
        with pytest.raises(DamagedBundle, match="KILN6001"):
            load_bundle(bad)


def test_a_bundle_of_another_version_is_refused(libraries: Libraries, monkeypatch: pytest.MonkeyPatch) -> None:
    data = save_bundle(add_norm(), libraries, {})
    monkeypatch.setattr(plan_file, "VERSION", plan_file.VERSION + 1)
    with pytest.raises(DamagedBundle, match=r"KILN6001[\s\S]*version"):
        load_bundle(data)


def test_a_bundle_of_another_machine_is_refused(libraries: Libraries, monkeypatch: pytest.MonkeyPatch) -> None:
    data = save_bundle(add_norm(), libraries, {})
    monkeypatch.setattr(plan_file, "instruction_sets", lambda: frozenset({"sse2"}))
    with pytest.raises(WrongMachine, match=r"KILN6003[\s\S]*lacks"):
        load_bundle(data)


def test_sections() -> None:
    sections = {"b": b"12", "a": b"", "c/d": bytes(100)}
    assert {name: bytes(view) for name, view in unpack(pack(sections)).items()} == sections


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4), torch.randn(4, 3).t(), torch.randn(6)[::2], torch.tensor(2.5), torch.zeros(0, 3),
        torch.randn(3).bfloat16(), torch.tensor([True, False]), torch.randn(1).expand(3), torch.arange(9)[4:],
    ],
)  # fmt: skip
def test_constants_survive(tensor: torch.Tensor) -> None:
    back = decode_tensor(encode_tensor(tensor))
    assert torch.equal(back, tensor) and back.stride() == tensor.stride() and back.dtype == tensor.dtype
    assert encode_tensor(back) == encode_tensor(tensor)


def test_stored_plans_are_canonical_text() -> None:
    data = encode_plan(everything())
    assert decode_plan(data) == everything() and encode_plan(decode_plan(data)) == data
    assert json.loads(data)["t"] == "Plan"
    for bad in (b"", b"[", b'{"t":"System"}', b'{"what":"x"}', b'{"t":"Plan"}', data.replace(b'"f32"', b'"f33"')):
        with pytest.raises(UnreadablePlan, match="KILN6002"):
            decode_plan(bad)


def test_floats_survive_exactly() -> None:
    for value in (0.1, -0.0, 1e300, 5e-324, float("inf"), float("-inf"), 2.0, float("nan")):
        (back,) = decode_plan(encode_plan((value,)))
        assert str(back) == str(value) and type(back) is float


def test_a_miss_is_explained(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    old = KeyBuilder("Net.forward").add("numerics", "fast").add("shape", [1, 2]).add("gone", 1)
    assert explain_miss(store, old) == "Net.forward was never stored"
    remember(store, old)
    assert explain_miss(store, old) == "the entry was removed or damaged"
    new = KeyBuilder("Net.forward").add("shape", [1, 3]).add("numerics", "fast").add("torch", "2.13")
    assert explain_miss(store, new) == "torch is new; gone is gone; shape was '[1, 2]', is '[1, 3]'"
    same = KeyBuilder("Net.forward").add("gone", 1).add("shape", [1, 2]).add("numerics", "fast")
    assert same.digest() == old.digest() != new.digest()
    with pytest.raises(ValueError, match="twice"):
        new.add("torch", "2.13")


def test_many_processes_share_a_store(tmp_path: Path) -> None:
    script = """
import sys
from kiln.runtime.cache.store import DiskStore
store = DiskStore(sys.argv[1], max_bytes=200_000)
for n in range(300):
    key = f"{n % 7:02d}key"
    body = store.get("plan", key)
    assert body is None or body == bytes([n % 7]) * 10_000, "a torn entry"
    store.put("plan", key, bytes([n % 7]) * 10_000)
"""
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    running = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env=environment, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    for process in running:
        _, message = process.communicate()
        assert process.returncode == 0, message.decode()
