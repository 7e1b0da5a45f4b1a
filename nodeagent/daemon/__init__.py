"""The long-running agent: composition, loops, and stopping in good order.

One supervisor owns the tasks. Loops run one pass at a time and share one turn, so that container and image
collection never act together; waits end at once when the agent is told to stop.
"""
