"""Benchmarks, each beside its floor in the same run. Machines are noisy: medians of several rounds, and ratios."""
