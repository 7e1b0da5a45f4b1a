"""The command line: parse, compose, print."""
