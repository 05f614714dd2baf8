"""Loop programs: what is computed into each buffer, before it is decided in which kernel."""
