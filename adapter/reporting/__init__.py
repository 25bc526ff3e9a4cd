"""What an adapter reports: registration, health, positions, forged packets, and its own death."""
