"""What a recorded run left for the adversary, and its file."""
