"""Write the configuration reference into a document, or compare both."""

from __future__ import annotations

import sys
from pathlib import Path

from nodeagent.config.toml_writer import embed_reference


def main(arguments: list[str]) -> int:
    """Run ``embed [--check] FILE``; return the exit code: 1 for a checked file that is out of date."""
    *options, name = arguments
    path = Path(name)
    text = path.read_text(encoding="utf-8")
    updated = embed_reference(text)
    if options == ["--check"]:
        if updated != text:
            sys.stderr.write(f"{path}: the configuration reference is out of date; run `make docs`\n")
            return 1
        return 0
    path.write_text(updated, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
