"""Confidence limits for finite samples."""
