"""Hugging Face models in this process: loaded, sampled and asked."""
