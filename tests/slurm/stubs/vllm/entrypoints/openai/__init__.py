"""Stands in for the package of this name in tests without engines."""
