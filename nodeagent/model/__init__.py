"""Frozen value types, shared by all other packages.

The types have no behaviour beyond properties computed from their fields. Mappings are never changed after construction;
plain ``dict`` is used instead of a read-only wrapper, because a node has tens of thousands of mappings.
"""
