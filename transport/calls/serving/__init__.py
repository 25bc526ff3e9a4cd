"""gRPC servers: one event loop for all calls, threads for what waits, and gates that decide which calls are served."""
