"""Import of protobuf without the parts of its Python implementation, where it uses a compiled one.

The generated modules import it before protobuf. protobuf imports ``python_message``, and thereby the text format and
``pickle``, also where nothing calls them: 3 % of the processor time of ``nodeagent images`` without a daemon.
"""

from types import ModuleType

from google.protobuf.internal import api_implementation

from nodeagent.hidden_modules import replaced_modules

_PYTHON_MESSAGE = "google.protobuf.internal.python_message"

if api_implementation.Type() != "python":
    with replaced_modules({_PYTHON_MESSAGE: ModuleType(_PYTHON_MESSAGE)}):
        import google.protobuf.descriptor_pool
        import google.protobuf.internal.builder  # noqa: F401 - both import python_message
