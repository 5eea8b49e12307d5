"""The ground floor: files that appear whole, prompts, the hub, errors, the terminal."""
