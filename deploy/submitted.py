"""A program for spark-submit, which runs files: `submitted.py source-job …` is `tandemfeed source-job …`."""

from __future__ import annotations

import sys

from tandemfeed.deploy.command import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
