"""What runs inside a measured Python process; it imports no more than it measures."""
