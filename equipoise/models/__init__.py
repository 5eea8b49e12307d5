"""Hugging Face models in this process: loaded and asked."""
