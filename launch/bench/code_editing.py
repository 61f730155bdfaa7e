"""Code editing: a HumanEval solution with an edit request, so that most of the answer is a copy.

The request is a pure function of the problem's place in the file: problem i gets request i modulo
their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

Request = Callable[[str], str]
"""From the function's name to what is asked."""

REQUESTS: tuple[Request, ...] = (
    lambda name: f"Rename the function {name} to {name}_v2 and change nothing else.",
    lambda name: f"Add a one-line comment above every statement in the body of {name}.",
    lambda name: f"Make {name} print its arguments before anything else.",
    lambda name: f"Remove the docstring of {name} and keep the code.",
    lambda name: f"Make {name} raise a TypeError when an argument is None.",
    lambda name: f"Wrap the body of {name} in a try block that prints and re-raises errors.",
    lambda name: f"Append a call of {name} with an example at the end of the file.",
    lambda name: f"Add type hints to {name} wherever they are missing.",
)


def edit_request(problem: Mapping[str, str], index: int) -> str:
    """The user's turn for a HumanEval problem: its whole solution, and what to change."""
    code = f"{problem['prompt']}{problem['canonical_solution']}".rstrip()
    request = REQUESTS[index % len(REQUESTS)](problem["entry_point"])
    return f"{request} Answer with the whole file.\n\n```python\n{code}\n```"
