"""Plain data: the columnar trace, the capture and the findings. Imports nothing else of ours."""
