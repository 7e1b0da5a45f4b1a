"""The control API on a unix socket: status, previews, passes on request, pause and resume, holds, reload.

Access rights follow from the peer's credentials: root has full access, members of the configured group have the
access that the configuration grants, other users have none.
"""
