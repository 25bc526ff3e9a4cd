"""Loads documents: from XML to a converter table, with every error named by file and line."""
