"""What every task of the daemon shares: one pass at a time, pause, the wait after a reload, clocks, signals."""
