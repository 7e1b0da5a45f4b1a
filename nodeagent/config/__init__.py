"""The configuration: a closed set of typed settings, read from TOML, checked as a whole before anything starts.

The models are the only description of a setting: the reference, the commented default file and the error texts are
made from them.
"""

from nodeagent.config.loading import DEFAULT_PATH, Loaded, load
from nodeagent.config.models import Config
from nodeagent.config.writing import reference, to_toml

__all__ = ["DEFAULT_PATH", "Config", "Loaded", "load", "reference", "to_toml"]
