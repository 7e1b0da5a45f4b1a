"""Readings for garbage collection: the runtime, the filesystems and the pod logs as one immutable snapshot.

``node`` reads the snapshot, with ``images`` for its image part and ``details`` for facts that the lists of CRI lack;
``lists`` compares the runtime's lists with each other; ``usage`` measures the image filesystem by category. An
incomplete reading is marked as incomplete, and planners treat its values as lower bounds.
"""
