"""Coverage of the intervals under simulated studies, and seconds of the statistics."""
