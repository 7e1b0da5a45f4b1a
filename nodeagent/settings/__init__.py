"""The settings in force: all sections of the configuration as one model, its files, and its reference.

:class:`~nodeagent.settings.settings.Settings` has seconds, bytes, paths and policies. A feature declares its section
beside itself; this package is the only one that knows all sections. Below it, modules name ``Settings`` in annotations
only.
"""
