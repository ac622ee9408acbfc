"""Entrypoint for `ray job submit -- python -m jobs.run FILE --run-dir DIR`: `batchmill run` by another name."""

from __future__ import annotations

import sys

from jobs.cli import main

if __name__ == "__main__":
    main(["run", *sys.argv[1:]])
