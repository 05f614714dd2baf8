"""`python -m tests.sweeps NAME ...`: see `runner.py`."""

import sys

from tests.sweeps.python_programs import PythonSweep
from tests.sweeps.rules import RuleSweep
from tests.sweeps.runner import main

SWEEPS = {"python": PythonSweep, "rules": RuleSweep}

if __name__ == "__main__":
    sys.exit(main(SWEEPS, sys.argv[1:]))
