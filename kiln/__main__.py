"""`python -m kiln`: run, demo, bench, bisect."""

import sys

from kiln.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
