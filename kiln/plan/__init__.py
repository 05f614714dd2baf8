"""The plan: what a compiled region does, as data, with its text, verifier, reference executor and file form."""
