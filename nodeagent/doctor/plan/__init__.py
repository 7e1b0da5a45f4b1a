"""Findings of the checks: pure rules over facts of the node, each finding with its remedy."""
