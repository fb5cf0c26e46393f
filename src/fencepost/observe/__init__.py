"""What a job says about itself while it runs and after it died: events, a journal of them, a pulse."""
