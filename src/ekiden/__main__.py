"""``python -m ekiden`` is the ``ekiden`` command."""

import sys

from ekiden.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
