"""Verify attention: committed prefix plus new rows, as interchangeable backends."""
