"""(x ^ y) ^ y is x."""

RECIPE = "A rewrite rule"
EDITS = [
    (
        "kiln/graph/passes/arithmetic.py",
        "ARITHMETIC = RuleSet(\n",
        'ARITHMETIC = RuleSet(\n    RewriteRule("xor_xor", op.bitwise_xor(op.bitwise_xor(x, y), y), x),\n',
    )
]


def check() -> None:
    from kiln.graph.passes.arithmetic import ARITHMETIC
    from tests.graph.passes.test_rules import test_arithmetic

    (rule,) = [rule for rule in ARITHMETIC if rule.name == "xor_xor"]
    test_arithmetic(rule)
