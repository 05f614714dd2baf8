"""What a caller must know of a program: names, structure, sizes and memory of arguments and results, as data.

Programs (`kiln.export`) and packages (`kiln.load`) share it; nothing here needs the compiler.
"""
