"""KILN_DUMP: a numbered file per stage, for inference, training, breaks and user backends."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from kiln.loops.lowering import lower
from kiln.loops.program.nodes import LoopProgram
from kiln.pipeline import stages
from kiln.pipeline.session import KilnWarning
from kiln.support.dump import Dump


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KILN_DUMP", str(tmp_path / "dump"))
    return tmp_path / "dump"


def function(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(torch.sin(x) @ w, -1)


def files(folder: Path) -> dict[str, str]:
    """Stage -> text, of the only folder."""
    (one,) = folder.iterdir()
    found = sorted(one.iterdir())
    assert [int(file.name[:2]) for file in found] == list(range(1, len(found) + 1))
    return {re.sub(r"^\d+_|\.txt$", "", file.name): file.read_text() for file in found}


INFERENCE = {
    "torch_graph": "torch.softmax",
    "graph": "graph(%0: f32[3, 4]",
    "passes": "graph(%0: f32[3, 4]",
    "lowering": "loops graph",
    "schedule": "kernel ",
    "plan": "plan graph",
    "plan_python": "def graph(a0, a1):",
    "kernels": 'extern "C"',
    "bytecode": "RETURN_VALUE",
    "guards": "tensor a Tensor of torch.float32",
}
TRAINING = {
    "torch_graph": "torch.softmax",
    "joint": "tangent_",
    "forward_graph": "graph ",
    "forward_lowering": "loops ",
    "forward_schedule": "kernel ",
    "forward_plan": "plan forward",
    "plan_python": "def ",
    "kernels": 'extern "C"',
    "bytecode": "RETURN_VALUE",
    "guards": "tensor a Tensor of torch.float32",
    "backward_graph": "tangent_",
    "backward_lowering": "loops ",
    "backward_schedule": "schedule ",
    "backward_plan": "plan backward",
}


def test_inference(folder: Path) -> None:
    kiln.compile(function)(torch.ones(3, 4), torch.ones(4, 2))
    found = files(folder)
    assert {stage for stage in INFERENCE if INFERENCE[stage] not in found.get(stage, "")} == set()


def test_training(folder: Path) -> None:
    kiln.compile(function)(torch.ones(3, 4), torch.ones(4, 2, requires_grad=True)).sum().backward()
    found = files(folder)
    assert {stage for stage in TRAINING if TRAINING[stage] not in found.get(stage, "")} == set()


def test_what_is_on_disk_is_compiled_again(folder: Path, tmp_path: Path) -> None:
    """A variant that is loaded goes through no stage."""
    options = {"cache": True, "cache_dir": str(tmp_path / "cache")}
    for _ in range(2):
        kiln.compile(function, options=options)(torch.ones(3, 4), torch.ones(4, 2))
    names = [sorted(file.name for file in region.iterdir()) for region in sorted(folder.iterdir())]
    assert len(names) == 2 and names[0] == names[1]


def test_parts_around_a_break_and_user_backends(folder: Path) -> None:
    def broken(x: Tensor) -> Tensor:
        y = torch.sin(x)
        torch._dynamo.graph_break()
        return y - 1

    kiln.compile(broken, backend="eager")(torch.ones(3))
    first, rest = sorted(folder.iterdir())
    assert re.fullmatch(r"001_.*broken", first.name) and rest.name.startswith("002_")
    for item in (first, rest):
        assert {"torch_graph", "bytecode", "guards"} <= {file.stem[3:] for file in item.iterdir()}


def test_without_a_folder_no_text_is_made() -> None:
    Dump(None).write("graph", lambda: 1 / 0)


def test_a_folder_is_made_when_there_is_something_in_it(tmp_path: Path) -> None:
    dump = Dump(tmp_path / "new", "a name/with <signs>")
    assert not (tmp_path / "new").exists()
    dump.write("graph", lambda: "text\n\n")
    assert (tmp_path / "new" / "001_a_name_with_signs_" / "01_graph.txt").read_text() == "text\n"


def test_threads_take_different_folders(tmp_path: Path) -> None:
    threads = [threading.Thread(target=Dump(tmp_path, "f").write, args=("graph", str)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(tmp_path.iterdir())) == 20


def test_stages_are_verified_where_texts_are_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lowering that forgets a node is caught by the verifier."""

    def forgetful(*args: Any) -> LoopProgram:
        program = lower(*args)
        return replace(program, nodes=program.nodes[1:])

    monkeypatch.setattr(stages, "lower", forgetful)
    x = torch.ones(3, 4)
    with pytest.warns(KilnWarning, match=r"KILN9301[\s\S]*P[24]"):
        assert torch.equal(kiln.compile(function)(x, torch.ones(4, 2)), function(x, torch.ones(4, 2)))
