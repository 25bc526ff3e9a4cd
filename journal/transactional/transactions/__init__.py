"""What clients do: transactions, their states, and two-phase commit."""
