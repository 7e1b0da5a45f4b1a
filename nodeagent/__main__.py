"""Run the command line with ``python -m nodeagent``."""

from nodeagent.cli.start import program

program()
