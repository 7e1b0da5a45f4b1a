"""Execution of plans.

Each item is read again just before its removal, and skipped if it changed since the plan. A failed item never stops
a pass. A dry run uses removers without effect, so no planner and no loop checks for dry runs.

``agent`` composes observer, planner and removers from the settings, for one command or for the daemon.
"""
