"""JSON documents of garbage collection, and the functions that make them from the node."""
