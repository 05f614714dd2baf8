"""The kinds of steps. To add one: a subclass of `Step` in STEPS, its record in `program_format.py`, and its C++."""

from kiln.plan.plan import Step
from kiln.plan.steps.compute import AtenStep, LaunchStep, RandomSeedStep, WaitStep
from kiln.plan.steps.control import BranchStep, CheckStep, HostReadStep, LoopStep
from kiln.plan.steps.memory import AllocateStep, ConstantStep, CopyStep, FreeStep, HandOverStep, ViewStep

STEPS: tuple[type[Step], ...] = (
    AllocateStep, ViewStep, CopyStep, ConstantStep, FreeStep, LaunchStep, AtenStep, RandomSeedStep, HostReadStep,
    CheckStep, BranchStep, LoopStep, WaitStep, HandOverStep,
)  # fmt: skip

__all__ = [
    "STEPS", "AllocateStep", "AtenStep", "BranchStep", "CheckStep", "ConstantStep", "CopyStep",
    "FreeStep", "HandOverStep", "HostReadStep", "LaunchStep", "LoopStep", "RandomSeedStep", "ViewStep",
    "WaitStep",
]  # fmt: skip
