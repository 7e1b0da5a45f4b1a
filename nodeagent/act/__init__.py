"""Carrying plans out.

Every removal looks once more, just before it, whether the item is still what the plan saw; what changed is left
alone. A failed item never stops a pass. A dry run is another remover that touches nothing, so no planner and no loop
asks whether it is on.
"""
