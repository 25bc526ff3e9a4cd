"""`./run crash-test`."""

from tests.crash.runner import main

if __name__ == "__main__":
    raise SystemExit(main())
