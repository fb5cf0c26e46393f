"""Real services for tests and benches, as child processes on this machine."""
