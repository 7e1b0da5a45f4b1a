"""The control API on a unix socket: status, previews, passes on request, pause and resume, holds, reload.

The peer's credentials decide what a caller may do: root everything, members of the configured group what the
configuration grants them, others nothing.
"""
