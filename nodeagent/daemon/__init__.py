"""The daemon: supervisor, control API, metrics and health, reload, status.

The supervisor owns all tasks. Loops run one pass at a time and share the pass lock, so that two loops never act
concurrently. Every wait ends when the daemon stops. Only the supervisor composes the tasks of the features.
"""
