"""The gRPC services: each method checks the caller's rights, then calls the broker. They decide nothing else."""
