"""Soak tests: a daemon runs for an hour, and its memory, descriptors, threads and state must not grow."""
