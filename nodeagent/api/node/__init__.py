"""Documents made from an observation of the node, by the daemon for its clients or by commands without a daemon."""
