"""The evaluator: judges the deterministic policy on whole episodes."""
