"""The commands, each with its lines of output; those that answer one question are in one chapter."""
