"""The audit log: a hash chain of everything that was granted, refused or changed; its writing, reading and checking."""
