"""Backwards of eager code, compiled: `kiln.compile_backward()`.

loss.backward()   the graph of autograd is read      structure.py
                  cut at what must stay eager        segments.py
                  each segment recorded, compiled    record.py, programs.py
                  the engine runs it                 session.py
"""
