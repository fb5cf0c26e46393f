"""Power loss: real cuts under a real job, and recorded file operations replayed with what was not synced lost."""
