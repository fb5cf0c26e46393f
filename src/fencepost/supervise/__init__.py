"""`fencepost run`: a supervisor that restarts a failed driver process, with a warm standby beside it."""
