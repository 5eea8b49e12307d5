"""What a person sees in a terminal and how they stop a run."""
