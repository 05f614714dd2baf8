"""Handlers of opcodes by normal name, in groups; `capture.py` imports every module, which registers them."""
