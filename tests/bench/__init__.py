"""Benchmarks, which print measurements and are not collected as tests."""
