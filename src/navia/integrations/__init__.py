"""Others meet an adapter here: loggers, Hugging Face pipelines."""
