"""The loss of a recorded loop."""
