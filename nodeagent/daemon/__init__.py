"""The daemon: supervisor, loops and tasks, reload, and orderly stop.

The supervisor owns all tasks. Loops run one pass at a time and share the pass lock, so that two loops never act
concurrently. Every wait ends when the daemon stops.

The subpackages ``control``, ``http``, ``eviction`` and ``shutdown`` are independent of each other and share the modules
of this package; only the supervisor composes them (an import contract enforces this).
"""
