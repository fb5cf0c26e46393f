"""What can be done with a checkpoint from outside its job: read it, check it, copy it, continue from it."""
