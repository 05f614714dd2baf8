"""Programs as static C libraries, without libtorch."""
