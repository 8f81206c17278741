"""What sharing random streams does to a comparison, on a finished demo."""
