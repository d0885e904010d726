"""How the batches of a recorded loop were drawn."""
