"""Commands with their options, one module per group; ``nodeagent.cli.main`` has the table of all commands.

Only the module of the command in use is imported. A command imports its implementation when it runs, so that ``--help``
is fast.
"""
