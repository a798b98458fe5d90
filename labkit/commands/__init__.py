"""The commands of `python -m labkit`: one file each, found by name."""
