"""Run the command line with ``python -m nodeagent``."""

from nodeagent.cli.main import main

main()
