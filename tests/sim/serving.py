"""gRPC server handlers from a service descriptor, for simulated runtimes and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from google.protobuf import message_factory

if TYPE_CHECKING:
    from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor


def service_handler(service: ServiceDescriptor, implementation: object) -> grpc.GenericRpcHandler[object, object]:
    """Return a handler that serves a service from an object's methods.

    Each RPC is served by the method of the same name, ``async def Name(request, context)``, an async generator for a
    streaming RPC. Of a stream of requests, only the first is served. An RPC without a method of that name returns
    UNIMPLEMENTED.

    The descriptor is in the generated module: ``api_pb2.DESCRIPTOR.services_by_name["ImageService"]``; the handler is
    added by ``server.add_generic_rpc_handlers``.
    """
    handlers = {
        method.name: _method_handler(method, implementation)
        for method in service.methods
        if hasattr(implementation, method.name)
    }
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _method_handler(method: MethodDescriptor, implementation: object) -> grpc.RpcMethodHandler[object, object]:
    make = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
    return make(
        getattr(implementation, method.name),
        request_deserializer=message_factory.GetMessageClass(method.input_type).FromString,
        response_serializer=message_factory.GetMessageClass(method.output_type).SerializeToString,
    )
