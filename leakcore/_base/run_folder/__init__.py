"""What a run folder is made of: its lock and its pieces."""
