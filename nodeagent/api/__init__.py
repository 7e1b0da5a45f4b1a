"""Documents: the JSON that commands print and other programs read, with one schema id for each.

A document is derived from plans, reports and observations; it decides nothing. Field names carry units, values are
machine-readable, and a document's schema id changes when a field changes its meaning.
"""
