"""`python -m tests.sweeps NAME ...`: see `runner.py`."""

import sys

from tests.stale.mutator import StaleSweep
from tests.stale.processes import ProcessSweep
from tests.sweeps.calls import CallSweep
from tests.sweeps.cpython import CPythonSweep
from tests.sweeps.files import FileSweep
from tests.sweeps.modules import ModuleSweep, OptimizerSweep
from tests.sweeps.operators import OperatorSweep
from tests.sweeps.python_programs import PythonSweep
from tests.sweeps.rules import RuleSweep
from tests.sweeps.runner import main
from tests.sweeps.samples import import_late_modules
from tests.sweeps.tensor_programs import GraphSweep, KernelSweep

SWEEPS = {
    "calls": lambda _: CallSweep(),
    "cpython": CPythonSweep,
    "files": lambda _: FileSweep(),
    "graphs": lambda _: GraphSweep(),
    "kernels": lambda given: KernelSweep(device=given.device),
    "shared-graphs": lambda _: GraphSweep(shared=True),
    "shared-kernels": lambda given: KernelSweep(shared=True, device=given.device),
    "modules": ModuleSweep,
    "operators": OperatorSweep,
    "optimizers": OptimizerSweep,
    "processes": lambda _: ProcessSweep(),
    "python": lambda _: PythonSweep(),
    "rules": lambda _: RuleSweep(),
    "stale": lambda _: StaleSweep(),
}

if __name__ == "__main__":
    if sys.argv[1:2] != ["table"]:
        import_late_modules()
    sys.exit(main(SWEEPS, sys.argv[1:]))
