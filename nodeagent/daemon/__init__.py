"""The daemon: supervisor, loops and tasks, reload, and orderly stop.

The supervisor owns all tasks. Loops run one pass at a time and share the pass lock, so that two of them never act
together. Every wait ends at the stop of the daemon.

The subpackages ``control``, ``http``, ``eviction`` and ``shutdown`` are independent of each other and share the modules
beside this one; only the supervisor composes them (an import contract enforces this).
"""
