"""Mutation testing: small faults in a module's syntax tree, one at a time; its tests must notice every one."""
