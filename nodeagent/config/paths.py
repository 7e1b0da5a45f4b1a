"""Default paths, as text: the import of ``pathlib`` takes as long as a whole request of a command to the daemon."""

from __future__ import annotations

CONFIG_FILE = "/etc/nodeagent/config.toml"
RUNTIME_DIRECTORY = "/run/nodeagent"
CONTROL_SOCKET = "/run/nodeagent/control.sock"
