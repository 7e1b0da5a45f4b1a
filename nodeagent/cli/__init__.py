"""The command line: options in, text or documents out; decisions are made in the layers below.

``start`` is the entry point; ``main`` builds the command tree from the modules in ``commands``, one per command group,
whose options are declared in ``options``. The implementation of each command is a module here. Its imports are deferred
until the command runs: the import of all of them takes longer than most commands.

A user other than root reads and acts through the running agent (``control_client``); for root the
commands use the planners of the daemon. Names of items are printed through ``output`` or ``terminal``, which escape
them.
"""
