"""A cluster on one machine: its settings, processes, ports, hosts and disks."""
