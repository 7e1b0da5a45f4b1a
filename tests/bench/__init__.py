"""Benchmarks; none of them is a test."""
