"""The configuration: a closed set of typed settings, read from TOML, checked as a whole before anything starts.

The models are the only description of a setting: the reference, the commented default file and the error texts are
made from them. What the agent works with is :class:`~nodeagent.config.settings.Settings`, which needs none of them.
"""
