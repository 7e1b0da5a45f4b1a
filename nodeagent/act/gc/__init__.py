"""Execution of garbage collection plans: each item is read again before its removal and skipped if it changed."""
