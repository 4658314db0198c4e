"""Where cells run: an executor takes cells and yields a row and trace, or a `Failure`, for each."""
