"""Generate ``nodeagent/_proto`` from the ``.proto`` files beside this script.

Without arguments the files are written, with ``--check`` only compared: exit code 1 if the committed files differ. The
compiler receives the files under the virtual path ``nodeagent/_proto/...``, so that the generated imports are correct,
and file names cannot collide with those of other packages for the same interfaces.

No ``_pb2_grpc`` modules are generated: clients and servers use the methods of the descriptors, and those modules would
require at run time at least the version of grpcio of their generation.
"""

# ruff: noqa: INP001 - a script, run by its path

from __future__ import annotations

import argparse
import difflib
import shutil
import sys
import tempfile
from importlib import resources
from pathlib import Path

PROTOS = Path(__file__).resolve().parent
REPOSITORY = PROTOS.parent
OUTPUT = REPOSITORY / "nodeagent" / "_proto"
PACKAGE = '''\
"""Generated from protos/ by protos/generate.py; not to be edited."""
'''
EMPTY_DOCSTRING = '"""Generated; see nodeagent._proto."""\n'
DIFF_LINES = 20


def main() -> int:
    """Write the generated files, or compare them; return the exit code."""
    parser = argparse.ArgumentParser(description="Generate nodeagent/_proto from protos/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the committed files differ")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as directory:
        generated = Path(directory)
        _generate(generated)
        if check:
            return _compare(generated / "nodeagent" / "_proto")
        shutil.rmtree(OUTPUT, ignore_errors=True)
        shutil.copytree(generated / "nodeagent" / "_proto", OUTPUT)
    return 0


def _generate(into: Path) -> None:
    """Run the compiler and its mypy plugin, and make every directory a package."""
    try:
        from grpc_tools import protoc  # noqa: PLC0415 - a missing module is reported with the command that installs it
    except ImportError:
        sys.exit("generate.py: grpcio-tools is not installed: use `make protos`, or the dependency group `protos`")
    plugin = Path(sys.executable).parent / "protoc-gen-mypy"
    if not plugin.exists():
        sys.exit("generate.py: mypy-protobuf is not installed: use `make protos`, or the dependency group `protos`")
    sources = sorted(path.relative_to(PROTOS).as_posix() for path in PROTOS.rglob("*.proto"))
    arguments = [
        "protoc",
        f"-Inodeagent/_proto={PROTOS}",
        f"-I{resources.files('grpc_tools') / '_proto'}",
        f"--plugin=protoc-gen-mypy={plugin}",
        f"--python_out={into}",
        f"--mypy_out=quiet:{into}",
        *(f"nodeagent/_proto/{source}" for source in sources),
    ]
    status = protoc.main(arguments)
    if status != 0:
        sys.exit(f"generate.py: protoc failed with status {status}")
    root = into / "nodeagent" / "_proto"
    for directory in (root, *sorted(path for path in root.rglob("*") if path.is_dir())):
        (directory / "__init__.py").write_text(PACKAGE if directory == root else EMPTY_DOCSTRING)


def _files(root: Path) -> dict[str, str]:
    """Return the text of each file below ``root`` by relative path, without bytecode."""
    return {
        path.relative_to(root).as_posix(): path.read_text()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def _compare(generated: Path) -> int:
    """Report differences of the committed files on standard error; return 1 if there are any, else 0."""
    expected, found = _files(generated), _files(OUTPUT)
    differing = [name for name in sorted(expected.keys() | found.keys()) if expected.get(name) != found.get(name)]
    for name in differing:
        state = "missing" if name not in found else "obsolete" if name not in expected else "differs"
        sys.stderr.write(f"nodeagent/_proto/{name}: {state}\n")
        if state == "differs":
            changes = difflib.unified_diff(
                found[name].splitlines(), expected[name].splitlines(), "committed", "generated", lineterm="", n=0
            )
            sys.stderr.writelines(f"    {line[:160]}\n" for line in list(changes)[:DIFF_LINES])
    if differing:
        sys.stderr.write(f"{len(differing)} file(s) differ: run `make protos` and commit the result\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
