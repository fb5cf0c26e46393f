"""What can be done with a checkpoint from outside its job: read it, check it, copy it, begin anew from it."""
