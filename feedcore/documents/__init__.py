"""Documents that users write: source formats and message models, loaded from XML and checked."""
