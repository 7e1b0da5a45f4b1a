"""Databases on disk: the use of images, and the history.

Both are SQLite files in the state directory; features keep their other state in small JSON files (``json_file``). A
failing store never stops the agent: with a full disk, a read-only path or a corrupt file it continues in memory, logs
that once, and writes the whole state when the file is writable again. A corrupt database is quarantined under another
name, never deleted.

Files of earlier versions are read; databases are migrated with the first write.
"""
