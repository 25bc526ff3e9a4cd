"""The client at the admin server: login, and a grant and its updates."""
