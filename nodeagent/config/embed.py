"""Write the configuration reference into a document, or compare them."""

from __future__ import annotations

import sys
from pathlib import Path

from nodeagent.config.toml_writer import embed_reference


def main(arguments: list[str]) -> int:
    """Run ``embed [--check] FILE``; return the exit code: 1 for a checked file that is out of date."""
    *options, name = arguments
    document = Path(name)
    before = document.read_text(encoding="utf-8")
    after = embed_reference(before)
    if options != ["--check"]:
        document.write_text(after, encoding="utf-8")
    elif before != after:
        sys.stderr.write(f"{document}: out of date; run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
