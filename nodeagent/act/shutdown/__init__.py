"""Execution of shutdown plans: pods are stopped phase by phase within the budget, and their end is verified."""
