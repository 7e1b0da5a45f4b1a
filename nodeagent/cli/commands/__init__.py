"""The commands with their options, one module per group; ``nodeagent.cli.main`` puts them into one tree.

A command imports its implementation when it runs, so that ``--help`` and completion are fast.
"""
