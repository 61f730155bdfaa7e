"""Commands: the only code that reads arguments and the environment."""
