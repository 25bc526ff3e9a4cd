"""Secured calls: TLS, login, finding the active admin server, and why a server cannot be reached."""
