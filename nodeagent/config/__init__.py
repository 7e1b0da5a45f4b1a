"""The configuration: a closed set of typed settings, read from TOML and validated as a whole before the agent starts.

The models are the only description of a setting: reference, commented default file and error texts are generated from
them. The daemon uses :class:`~nodeagent.config.settings.Settings`, which does not import the models: pydantic
would increase the memory and the start time of every process of the agent.
"""
