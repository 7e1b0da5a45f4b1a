"""Fuzzing of inputs controlled by other users and programs.

Targets: the HTTP server, requests and documents of the control API, saved plans, the hold file, list filters. A target
accepts every input or rejects it with the documented error. ``make fuzz MINUTES=30`` runs the campaign: coverage-guided
where atheris is installed, by mutation of the seeds otherwise. The unit tests run a fixed number of mutations.
"""
