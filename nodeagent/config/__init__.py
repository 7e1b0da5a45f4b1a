"""The configuration: a closed set of typed settings, read from TOML, checked as a whole before anything starts.

The models are the only description of a setting: reference, commented default file and error texts are generated from
them. The daemon works with :class:`~nodeagent.config.settings.Settings`, which does not import them.
"""
