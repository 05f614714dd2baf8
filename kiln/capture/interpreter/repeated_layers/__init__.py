"""Equal layers are interpreted once: the call of a module repeats a recorded call of an equal one."""
