"""Starts again what failed: the query inside its driver, the driver under its supervisor, a warm standby beside it."""
