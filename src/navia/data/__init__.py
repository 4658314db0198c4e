"""image -> batch: preprocessing, folders, corruptions, streams."""

SOURCE_IMAGES = 64
"""Clean images from which source statistics are measured, by default everywhere: as many as in the paper."""
