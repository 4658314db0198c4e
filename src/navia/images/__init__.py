"""image -> batch: preprocessing, folders, corruptions, streams."""
