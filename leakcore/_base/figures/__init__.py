"""Figures of matplotlib: settings for one figure at a time, and values under the pointer."""
