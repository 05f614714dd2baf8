"""Guards of a capture: collection with implication (`collector`), explanation."""
