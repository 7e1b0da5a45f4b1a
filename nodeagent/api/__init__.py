"""Documents, the JSON of commands and of the control API, as typed structs; operations and client of the control API.

One struct declares a document: its fields, its schema id, its encoding, its decoding and its JSON Schema (``common``).
The documents of a feature are beside the feature, those of the whole node in ``daemon``.
``of`` converts values of the model to a document. The CLI renders documents, so a response of the daemon and an
observation by the command itself have the same output. Keys contain their unit, times are RFC 3339 in UTC. Fields are
added, never renamed or removed; a changed meaning of a field requires a new id in ``schemas``. A decoder ignores
unknown fields, and uses the default of each field that is missing in the response of an older daemon.

Rejected: hand-written dicts, which require a separate decoding function for each document.
"""
