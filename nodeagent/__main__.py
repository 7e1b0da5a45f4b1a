"""Run the command line with ``python -m nodeagent``."""

from nodeagent.cli.start import main

main()
