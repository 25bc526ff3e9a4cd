"""Documents that users write: source formats and message models, read from XML and checked."""
