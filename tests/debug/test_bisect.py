"""`python -m kiln bisect` names what was planted: in the process of the script and in its own."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import kiln
from kiln.cli.bisect import options_without, run
from kiln.debug.bisect import bisect_script, every_switch, healing_switch
from kiln.debug.reduce import smallest
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.parse import parse_graph
from kiln.graph.ir.text import graph_text
from kiln.pipeline.reproducer import FOLDER
from kiln.pipeline.switches import SWITCHES


@dataclass(frozen=True)
class Plant:
    """Code that breaks the compiler, a program that shows it, and the lines that bisect prints."""

    fault: str
    program: str
    found: tuple[str, ...]


RULE = """
from kiln.graph.passes.arithmetic import ARITHMETIC, x
from kiln.graph.passes.patterns import RewriteRule
from kiln.graph.passes.pipeline import GRAPH_PASSES, JOINT_PASSES
wrong = RewriteRule("mul_three", x * 3, x)
ARITHMETIC.rules += (wrong,)
for step in (*GRAPH_PASSES, *JOINT_PASSES):
    if step.name == "simplify":
        step.by_root["mul"].insert(0, wrong)
"""
PASS = """
from kiln.graph.passes import cse
right = cse.node_key
cse.node_key = lambda node: "sine" if node.op.name == "sin" else right(node)
"""
LOOP_PASS = """
from dataclasses import replace
from kiln.loops.program.nodes import Reduction, ReduceOp
from kiln.loops.program.passes.recompute_at_gather import RecomputeAtGather
def run(self, program, target):
    largest = lambda node: replace(node, op=ReduceOp.MAX) if isinstance(node, Reduction) else node
    return replace(program, nodes=tuple(map(largest, program.nodes))), 1
RecomputeAtGather.run = run
"""
FUSION = """
from kiln.loops.fusion import vetoes
for key in vetoes.VETOES_BY_RULE:
    vetoes.VETOES_BY_RULE[key] = ()
"""
KERNEL_PASS = """
from kiln.loops.body.body import Compute
from kiln.loops.body.reference import ERF_PLUS_ONE
from kiln.loops.kernel.passes import fuse_erf
def fused(op, ops, uses):
    wrong = isinstance(op, Compute) and op.op.name == "erf"
    return Compute(ERF_PLUS_ONE, op.operands, op.dtype) if wrong else op
fuse_erf._fused = fused
"""
DIALECT = """
from kiln.loops.codegen.cpp.dialect import CPP
CPP.exprs["sin"] = "sin({0}) * 1.01f"
"""
REUSE = """
from kiln.loops.fusion import lifetimes
def dying(self, group):
    return tuple(name for name in dict.fromkeys(lifetimes._read(group)) if name in self._own)
lifetimes.LastUses.dying = dying
"""
DECOMPOSITION = """
from kiln.graph.ops import DECOMPOSITIONS
DECOMPOSITIONS.cells["aten.silu.default"] = lambda e, x: e.pointwise("mul", x, 0.5)
"""
GRADIENTS = """
import sys, kiln.graph.autograd
partition = sys.modules["kiln.graph.autograd.partition"]
right = partition.values_to_save
def swapped(sides, env):
    chosen = right(sides, env)
    sides.gradients.reverse()
    return chosen
partition.values_to_save = swapped
"""
CAPTURE = """
import torch
from kiln.graph.trace import Recorder
right = Recorder.call
def call(self, target, *rest, **named):
    return right(self, torch.cos if target is torch.sin else target, *rest, **named)
Recorder.call = call
"""

PLANTS = {
    "rewrite rule": Plant(
        RULE, "(x.exp() * 3).tanh() + 1", ("stage: passes", "rewrite rule: mul_three", "= mul(%0, %1)")
    ),
    "graph pass": Plant(PASS, "x.sin() + (x * 2).sin()", ("stage: passes", "graph pass: cse")),
    "loop pass": Plant(
        LOOP_PASS, "x.exp().sum(1)", ("stage: loop_passes", "loop pass: recompute-at-gather", "sum(%0, axes=(1,))")
    ),
    "fusion rule": Plant(
        FUSION, "(lambda y: (y, y.t().contiguous() * 2 + y.flip(0)))(x.sin() + 1)", ("fusion rule: vertical",)
    ),
    "kernel pass": Plant(
        KERNEL_PASS, "torch.special.erf(x.exp()) * 3", ("stage: kernels", "kernel pass: fuse-erf", "= erf(%0)")
    ),
    "code": Plant(DIALECT, "(x.exp() @ x.t()).sin() * 2", ("stage: kernels", "kernel: ", "= sin(%0)")),
    "memory": Plant(
        REUSE, "(lambda y: (torch.mm(y.exp().cumsum(0), y) + y, y.exp() * 2, y))(x.relu() @ x)",
        ("memory-reuse",),
    ),
    "decomposition": Plant(DECOMPOSITION, "torch.nn.functional.silu(x) + 1", ("stage: trace",)),
    "partition": Plant(
        GRADIENTS, "(x.sin() * w.cos()).sum()", ("stage: partition", "recompute"),
    ),
    "capture": Plant(CAPTURE, "torch.sin(x) + 1", ("stage: capture",)),
}  # fmt: skip

SCRIPT = """
import torch, kiln
torch.manual_seed(0)
x, w = torch.randn(16, 16), torch.rand(16, 16)
if {gradient}:
    x.requires_grad_(), w.requires_grad_()
program = lambda x, w: {program}
torch.testing.assert_close(kiln.compile(program)(x, w), program(x, w))
"""


def bisected(plant: Plant, folder: Path) -> str:
    """What bisect prints. The script and bisect itself import the fault."""
    (folder / "fault.py").write_text(plant.fault)
    script = SCRIPT.format(program=plant.program, gradient="sum()" in plant.program)
    (folder / "script.py").write_text(f"import fault\n{script}")
    command = "import fault, sys; from kiln.cli.main import main; sys.exit(main(['bisect', 'script.py']))"
    root = str(Path(kiln.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), root])}
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


QUICK = ("rewrite rule", "memory")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PLANTS]
)
def test_a_planted_fault_is_named(name: str, tmp_path: Path) -> None:
    plant = PLANTS[name]
    text = bisected(plant, tmp_path)
    for line in plant.found:
        assert line in text


def test_nothing_is_found_in_a_right_program(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(program="x.sin() + w", gradient=False))
    root = str(Path(kiln.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "kiln", "bisect", "script.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": root},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "no region differs" in done.stdout, done.stderr


# Its parts.


@pytest.mark.parametrize("wrong", ["cse", "vertical", "memory-reuse", "mul_one"])
def test_halving_finds_each_switch(wrong: str) -> None:
    trials: list[int] = []

    def differs(without: object) -> bool:
        trials.append(1)
        return wrong not in without  # type: ignore[operator]

    assert healing_switch(every_switch(), differs) == wrong
    assert len(trials) <= 2 + 2 * len(SWITCHES).bit_length()


def test_a_fault_that_takes_two_switches_is_no_fault_of_one() -> None:
    trials: list[int] = []

    def differs(without: Sequence[str]) -> bool:
        trials.append(1)
        return not {"cse", "mul_one"} <= set(without)

    assert healing_switch(every_switch(), differs) == ""
    assert len(trials) <= 2 + 2 * len(SWITCHES).bit_length()


def test_switches_that_the_user_turned_off_stay_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_OPTIONS", "disable=cse+vertical, variants=3")
    assert options_without(["mul_one"]) == "variants=3,disable=cse+vertical+mul_one"
    monkeypatch.setenv("KILN_OPTIONS", "")
    assert options_without([]) == ""


def test_errors_of_the_script_are_shown_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.exit('no such file')\n")
    run(argparse.Namespace(script=script, arguments=[]))
    assert capfd.readouterr().err.count("no such file") == 1


def test_a_reproducer_is_known_by_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    (folder / "case.py").write_text("raise SystemExit('taken as a reproducer')\n")
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit, match="taken as a reproducer"):
        run(argparse.Namespace(script=Path("case.py"), arguments=[]))


def test_no_switch_heals_a_fault_of_code_generation() -> None:
    assert healing_switch(every_switch(), lambda without: True) == ""


@pytest.mark.parametrize(
    ("fails_without", "stage"),
    [(("capture",), "capture"), (("capture", "compile"), "compile"), ((), "the program itself")],
)
def test_stages_of_a_script(fails_without: tuple[str, ...], stage: str) -> None:
    """It fails unless one of `fails_without` is switched off."""
    found = bisect_script(lambda without: not set(without) & set(fails_without))
    assert found is not None and found.stage == stage


GRAPH = """
graph(%0: f32[4, 4] "x", %1: f32[4, 4] "y"):
    %2: f32[4, 4] = aten.mm.default(%0, %1)
    %3: f32[4, 4] = exp(%2)
    %4: f32[4, 4] = sin(%3)
    %5: f32[4, 4] = mul(%4, %3)
    %6: f32[4, 4] = neg(%5)
    return %6, %2
"""


def test_the_smallest_graph() -> None:
    """Failing means: a sine is multiplied."""

    def fails(graph: object, inputs: object) -> bool:
        nodes = graph.nodes  # type: ignore[attr-defined]
        return any(node.op.name == "mul" and node.inputs[0].op.name == "sin" for node in nodes)

    torch.manual_seed(0)
    graph, inputs = smallest(parse_graph(GRAPH), [torch.randn(4, 4), torch.randn(4, 4)], {}, fails)
    assert [node.op.name for node in graph.nodes] == ["sin", "mul"]
    assert len(inputs) == len(graph.inputs) == 1
    assert parse_graph(graph_text(graph)) is not None


def test_the_smallest_graph_computes_something() -> None:
    """Computed values become inputs, but not the result itself."""
    text = 'graph(%0: f32[4] "x"):\n    %1: f32[4] = sin(%0)\n    %2: f32[4] = exp(%1)\n    return %2'
    for wanted in ("sin", "exp"):

        def fails(graph: Graph, inputs: object, wanted: str = wanted) -> bool:
            return not graph.nodes or wanted in graph_text(graph)

        graph, inputs = smallest(parse_graph(text), [torch.ones(4)], {}, fails)
        assert [node.op.name for node in graph.nodes] == [wanted] and len(inputs) == 1
