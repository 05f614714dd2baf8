"""Content-addressed storage on disk, keys that can explain a miss, and bundles."""
