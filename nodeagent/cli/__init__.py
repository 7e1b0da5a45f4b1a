"""The operator's commands: parse, compose, print."""
