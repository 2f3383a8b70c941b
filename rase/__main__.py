"""``python -m rase``: the same as the command ``rase``."""

import sys

from rase.cli import main

if __name__ == "__main__":
    sys.exit(main())
