"""Generated from protos/ by protos/generate.py; not to be edited."""

import nodeagent.protobuf_runtime
