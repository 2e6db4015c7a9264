//! The storage daemon: devices by id, recovery, image import; its gRPC service and client.
