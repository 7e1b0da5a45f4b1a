"""Generated; see nodeagent._proto."""
