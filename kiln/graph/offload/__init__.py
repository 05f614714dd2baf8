"""Parts of a graph for another compiler; the rest stays in Kiln's plan.

found = split(graph, backend)             which nodes the backend takes, in how few parts
print(found.text())                       the parts, and why the others stay
with_calls(found, compile_part)           the graph with one call for each part
"""
