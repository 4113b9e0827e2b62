"""`python -m fedleak`: the command line, also where no script is on the path."""

from __future__ import annotations

from fedleak.cli import main

if __name__ == "__main__":
    main()
