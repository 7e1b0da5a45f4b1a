"""The configuration: a closed set of typed settings, read from TOML and validated as a whole before the agent starts.

The sections are msgspec structs and the only description of a setting: validation, reference, commented default file
and error texts are derived from them. The daemon receives :class:`~nodeagent.settings.settings.Settings`: seconds,
bytes, paths and policies.
"""
