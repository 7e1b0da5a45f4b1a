"""Generated from protos/ by protos/generate.py; not to be edited."""
