"""The ground floor: files that appear whole, errors, the terminal and exits."""
