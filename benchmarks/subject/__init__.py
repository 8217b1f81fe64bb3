"""Measured Python processes; they import only what they measure."""
