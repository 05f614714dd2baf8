"""Kinds of values, one file per kind; `capture.py` imports every module, which registers how objects become values."""
