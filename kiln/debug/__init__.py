"""Finding faults of the compiler: the stage that differs, the switch that heals it, the smallest graph."""
