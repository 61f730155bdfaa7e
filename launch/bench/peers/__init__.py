"""Other inference libraries as opponents, each in a process of its own."""
