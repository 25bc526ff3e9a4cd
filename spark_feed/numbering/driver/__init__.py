"""The driver: the query, its session and its JVM, and what is committed."""
