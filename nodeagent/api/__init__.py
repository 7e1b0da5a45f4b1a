"""Documents: the JSON of commands and of the control API, as typed structs.

One struct declares a document: its fields, its schema id, its encoding, its decoding and its JSON Schema (``codec``).
``of`` converts values of the model to a document; the CLI renders documents, so that the daemon's answer and a
command's own reading are printed equally. Keys carry their unit, times are RFC 3339 in UTC. Fields are added, never
renamed or removed; a field that changes its meaning needs a new id in ``schemas``. A decoder ignores unknown fields and
uses the defaults of fields missing in the answer of an older daemon.

Rejected: hand-written dicts, which require a second function to decode each document; pydantic models, at nine times
the memory.
"""
