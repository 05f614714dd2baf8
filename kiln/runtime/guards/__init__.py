"""Sources and guards as data, and the native tree that checks them.

`build_tree` stands in `kiln.runtime.guards.tree`, which needs the native module; the data does not.
"""
