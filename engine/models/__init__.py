"""The decoder and its layers, as single-device code, and how it is split over ranks."""
