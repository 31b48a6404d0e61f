"""Paired trainings of several recipes over data sets and seeds: `python -m benchmarks.recipes`."""
