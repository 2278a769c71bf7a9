"""Text to `Program` and back."""
