"""Hugging Face models in this process: loaded, named by their content, asked, handed in."""
