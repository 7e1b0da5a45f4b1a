"""Carrying plans out.

Each item is read again just before its removal, and skipped if it is not what the plan saw. A failed item never stops
a pass. A dry run is another remover, which touches nothing, so no planner and no loop asks whether it is on.

``agent`` composes observer, planner and removers from the settings, for one command or for the daemon.
"""
