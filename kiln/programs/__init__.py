"""Export: whole programs that leave the process, as graphs, as text, as files.

program = kiln.export(model, (x,), dynamic_shapes={"x": {0: kiln.Dim("batch")}})
program.save("model.kp"); kiln.load_program("model.kp")(x)
"""
