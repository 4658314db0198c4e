"""Images -> batches: preprocessing, sources, layouts, corruptions, streams, loader."""

SOURCE_IMAGES = 64
"""Default number of clean images for source statistics, as in the paper."""
