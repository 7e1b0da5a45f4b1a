"""Commands with their options, one module per group; ``nodeagent.cli.main`` builds the command tree from the modules.

A command imports its implementation when it runs, so that ``--help`` and completion are fast.
"""
