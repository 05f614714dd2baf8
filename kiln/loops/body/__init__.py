"""The body of a loop: data, builder, reference semantics, index expressions."""
