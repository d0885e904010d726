"""The linear system behind the label attacks, and how its solutions become labels."""
