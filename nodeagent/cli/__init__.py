"""The command line: options in, text or documents out; decisions are made in the layers below.

``start`` is the entry point; ``main`` builds the command tree from the modules in ``commands``, one per command group,
whose options are declared in ``options``. The implementation of each command is a module here. Its imports are deferred
until the command runs: the import of all of them takes longer than most commands.

A command that reads is answered by the running daemon (``reading``), otherwise it makes the same document from the node
(``local_reading``); it prints the JSON of that document. Common command lines are matched without the parser
(``quick``), since the import of the parser, of the types of the documents and of the clients of the runtime takes most
of a command's time; ``tests/unit/cli/test_imports.py`` lists the modules that each command does without. A user other
than root also acts through the daemon (``control_client``); for root the commands that act use the planners of the
daemon. Names of items are printed through ``output`` or ``display``, which escape them.
"""
