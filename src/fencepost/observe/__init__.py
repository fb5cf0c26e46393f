"""What a job reports about itself, while it runs and after it died: events, a journal, a heartbeat."""
