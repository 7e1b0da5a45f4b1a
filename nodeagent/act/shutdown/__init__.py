"""Carrying out a shutdown plan: pods are stopped group by group within the budget, and verified to have ended."""
