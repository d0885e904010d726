"""Configurations of an audit: their keys and their TOML file."""
