"""What is missing: when it is requested, and what is declared lost."""
