"""What attacks find, measured."""
