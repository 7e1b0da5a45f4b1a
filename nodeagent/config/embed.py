"""Write the configuration reference into a document and the table of plain settings, or compare both."""

from __future__ import annotations

import sys
from pathlib import Path

from nodeagent.config.plain import TABLE
from nodeagent.config.plain_table import rendered
from nodeagent.config.toml_writer import embed_reference


def main(arguments: list[str]) -> int:
    """Run ``embed [--check] FILE``; return the exit code: 1 for a checked file that is out of date."""
    *options, name = arguments
    document = Path(name)
    updated = {
        document: embed_reference(document.read_text(encoding="utf-8")),
        Path(TABLE): rendered(),
    }
    if options != ["--check"]:
        for path, text in updated.items():
            path.write_text(text, encoding="utf-8")
        return 0
    old = [path for path, text in updated.items() if path.read_text(encoding="utf-8") != text]
    for path in old:
        sys.stderr.write(f"{path}: out of date; run `make docs`\n")
    return int(bool(old))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
