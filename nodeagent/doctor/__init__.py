"""The checks of ``nodeagent doctor`` and of ``config check``: facts of the node, and pure rules that judge them."""
