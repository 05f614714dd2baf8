"""Two slots exchange their values."""

RECIPE = "A plan step"
EDITS = [
    (
        "kiln/plan/program_format.py",
        "NATIVE_STEPS = (\n",
        'NATIVE_STEPS = (\n    SWAP           := NativeStep("Swap", first=SLOT, second=SLOT),\n',
    ),
    (
        "kiln/plan/steps/memory.py",
        "from kiln.plan.program_format import ALLOCATE,",
        "from kiln.plan.program_format import SWAP, ALLOCATE,",
    ),
    (
        "kiln/plan/steps/memory.py",
        "",
        '''

@final
@dataclass(frozen=True, slots=True)
class SwapStep(Step):
    """Two slots exchange their values."""

    first: Slot
    second: Slot

    uses = ("first", "second")

    def text(self) -> str:
        return f"swap %{self.first}, %{self.second}"

    def python(self, printer: PlanPrinter) -> str:
        first, second = printer.names[self.first], printer.names[self.second]
        return f"{first}, {second} = {second}, {first}"

    def native(self, encoder: PlanEncoder) -> Record:
        return Record(SWAP, first=self.first, second=self.second)

    def run(self, run: PlanRun) -> None:
        values = run.values
        values[self.first], values[self.second] = values[self.second], values[self.first]
''',
    ),
    (
        "kiln/plan/steps/__init__.py",
        "from kiln.plan.steps.memory import ",
        "from kiln.plan.steps.memory import SwapStep\nfrom kiln.plan.steps.memory import ",
    ),
    ("kiln/plan/steps/__init__.py", "    AllocateStep, ViewStep,", "    SwapStep, AllocateStep, ViewStep,"),
    (
        "csrc/executor/run.cpp",
        "  void run(const CopyStep& step)",
        "  void run(const SwapStep& step) { std::swap(slots_[step.first], slots_[step.second]); }\n"
        "  void run(const CopyStep& step)",
    ),
]


def check() -> None:
    import torch

    from kiln.plan.plan import Plan, PlanInput, PlanOutput
    from kiln.plan.reference import PythonExecutor
    from kiln.plan.steps import AllocateStep, CopyStep, SwapStep
    from kiln.plan.text import plan_text
    from kiln.runtime.executor import make_executor
    from kiln.runtime.kernels import Libraries
    from kiln.tensor.spec import TensorSpec

    layout = TensorSpec(torch.float32, (4,), (1,))
    plan = Plan(
        name="swapped",
        inputs=(PlanInput("x", layout), PlanInput("y", layout)),
        symbols=(),
        steps=(
            AllocateStep(2, layout), CopyStep(2, 0), AllocateStep(3, layout), CopyStep(3, 1), SwapStep(2, 3),
        ),
        outputs=(PlanOutput(slot=2), PlanOutput(slot=3)),
        kernels=(),
        num_slots=4,
    )  # fmt: skip
    x, y = torch.randn(4), torch.randn(4)
    for make in (PythonExecutor, make_executor):
        first, second = make(plan, Libraries({}, ()))(x, y)
        assert torch.equal(first, y) and torch.equal(second, x)
    assert "swap %2, %3" in plan_text(plan)
