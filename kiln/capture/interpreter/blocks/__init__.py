"""Equal blocks are interpreted once: the call of a module whose like was called before repeats what that one did."""
