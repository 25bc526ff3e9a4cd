"""Generate the Python code of the contracts in proto/ (`./run contracts`). The code is committed, so that users need no
protocol compiler; a test compares it with the .proto files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO_ROOT = ROOT / "proto"


def generate(out: Path) -> list[Path]:
    """Compile every contract into `out` and return the files written, relative to it.

    Raises:
        RuntimeError: the protocol compiler refused a contract and has printed where and why.
    """
    import grpc_tools
    from grpc_tools import protoc

    contracts = sorted(str(path.relative_to(PROTO_ROOT)) for path in PROTO_ROOT.rglob("*.proto"))
    bin_dir = Path(sys.executable).parent
    status = protoc.main(
        [
            "protoc",
            f"--proto_path={PROTO_ROOT}",
            f"--proto_path={Path(grpc_tools.__file__).parent / '_proto'}",
            f"--plugin=protoc-gen-mypy={bin_dir / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={bin_dir / 'protoc-gen-mypy_grpc'}",
            f"--python_out={out}",
            f"--grpc_python_out={out}",
            f"--mypy_out={out}",
            f"--mypy_grpc_out={out}",
            *contracts,
        ]
    )
    if status != 0:
        raise RuntimeError(f"the protocol compiler refused a contract (status {status})")
    return sorted(path.relative_to(out) for path in out.rglob("*_pb2*") if path.is_file())


def main(argv: Sequence[str] | None = None) -> int:
    """Regenerate the committed files."""
    argparse.ArgumentParser(allow_abbrev=False, description=__doc__).parse_args(argv)
    for path in generate(PROTO_ROOT):
        print(PROTO_ROOT.name, path, sep="/")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
