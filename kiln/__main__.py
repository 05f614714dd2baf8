"""`python -m kiln`: demo, bench, doctor."""

import sys

from kiln.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
