"""What survives the server: SQLite in the private folder or ZooKeeper, and the audit log."""
