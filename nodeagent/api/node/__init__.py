"""Documents of an observation of the node, created by the daemon for its clients and by commands without a daemon."""
