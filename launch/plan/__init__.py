"""The planner: what a step costs, what fits, and what lookahead and row budget follow."""
