"""The daemon: supervisor, loops, reload, and stopping in order.

One supervisor owns the tasks. Loops run one pass at a time and share the pass lock, so that two of them never act
together. All waits end when the daemon is stopped.
"""
