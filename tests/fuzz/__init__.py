"""Fuzzing of inputs controlled by other users and programs.

Targets are, among others, the HTTP server, requests and documents of the control API, saved plans, the hold file and
list filters. A target accepts every input or rejects it with the documented error. ``make fuzz MINUTES=30`` runs the
campaign: coverage-guided if atheris is installed, otherwise by mutation of the seeds. The unit tests run a fixed number
of mutations.
"""
