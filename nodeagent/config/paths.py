"""Default paths, as text: importing ``pathlib`` takes as long as a request to the daemon."""

from __future__ import annotations

CONFIG_FILE = "/etc/nodeagent/config.toml"
RUNTIME_DIRECTORY = "/run/nodeagent"
CONTROL_SOCKET = "/run/nodeagent/control.sock"
