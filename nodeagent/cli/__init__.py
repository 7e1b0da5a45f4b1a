"""Command-line interface: parses options and prints tables or documents; the planners make all decisions.

``start`` is the entry point. ``main`` has the table of all commands, which are declared in the modules of ``commands``;
``options`` declares the shared options. Each command is implemented in a module of this package. The module is imported
when the command runs, since importing all modules takes longer than running most commands.

Read-only commands request a document from the running daemon (``reading``). Without a daemon they read the node and
build the same document. ``tests/unit/cli/test_imports.py`` lists the modules that each command must
not import, such as the runtime clients, whose import takes longer than the command. Users other than root also
remove items through the daemon (``control_client``). As root, the commands that remove items run the planners of the
daemon in their own process. Item names are printed through ``display``, which escapes control characters.
"""
