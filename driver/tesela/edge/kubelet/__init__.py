"""The kubelet: its registration and DRA protocols over Unix sockets, as a server and, for stand-ins, as a client.

The only door to `grpc`. Messages come in and go out as dataclasses of `core.model`; what is to be done about a claim is
decided behind the port `NodeService`, never here. Nothing is re-exported: import the module that is meant.
"""
