"""``python -m capplan`` is ``capplan``."""

import sys

from capplan.cli import main

if __name__ == "__main__":
    sys.exit(main())
