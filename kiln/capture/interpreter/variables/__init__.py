"""Kinds of values, one file per kind; importing the package registers how objects become values."""
