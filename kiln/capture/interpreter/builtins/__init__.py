"""Handlers of builtin callables; `capture.py` imports every module, which registers them."""
