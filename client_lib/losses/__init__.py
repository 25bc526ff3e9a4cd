"""The loss report: every loss that a client observed, also those that were made good, on the disk."""
