"""`python -m tests.sweeps NAME ...`: see `runner.py`."""

import sys

from tests.stale.mutator import StaleSweep
from tests.sweeps.python_programs import PythonSweep
from tests.sweeps.rules import RuleSweep
from tests.sweeps.runner import main
from tests.sweeps.tensor_programs import GraphSweep, KernelSweep

SWEEPS = {
    "graphs": GraphSweep,
    "kernels": KernelSweep,
    "python": PythonSweep,
    "rules": RuleSweep,
    "stale": StaleSweep,
}

if __name__ == "__main__":
    sys.exit(main(SWEEPS, sys.argv[1:]))
