"""Audits of a recorded run with canaries."""
