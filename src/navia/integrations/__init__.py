"""Adapters in other tools: loggers, Hugging Face pipelines."""
