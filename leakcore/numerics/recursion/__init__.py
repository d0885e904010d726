"""The privacy profile, step by step."""
