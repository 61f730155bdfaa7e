"""Kinds of prompts whose answer is mostly the prompt again: repeat, repair, reformat, annotate."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from launch.data.passages import passage
from launch.data.records import (
    Record,
    as_aligned,
    as_csv,
    as_json,
    as_markdown,
    nested_document,
    records,
)
from launch.data.snippets import misspell, script, snippet


def ask(rng: Random, instructions: tuple[str, ...], content: str) -> str:
    """One of the instructions before the content, or, one time in four, behind it."""
    instruction = rng.choice(instructions)
    if rng.random() < 0.25:
        return f"{content}\n\n{instruction}"
    return f"{instruction}\n\n{content}"


def fenced(source: str, language: str = "") -> str:
    """A code fence around a text."""
    return f"```{language}\n{source}\n```"


def repeat_json(rng: Random) -> str:
    """Repeat a JSON document, whole or with one value changed."""
    document = nested_document(rng) if rng.random() < 0.5 else records(rng, rng.randint(2, 3))
    instructions = (
        "Repeat the following JSON exactly as it is.",
        "Print this JSON again without any change.",
        "Copy this JSON document word for word into a code block.",
        'Return the same JSON with one more key "checked": true and nothing else changed.',
        "Output the JSON below again, formatted with an indent of two spaces.",
    )
    return ask(rng, instructions, fenced(as_json(document), "json"))


def fix_typo_in_code(rng: Random) -> str:
    """Correct one misspelt identifier and give the code back."""
    code = snippet(rng)
    broken = misspell(rng, code.source, code.variables)
    instructions = (
        "There is one typo in this Python code. Correct it and show the whole code again.",
        "Fix the misspelled variable in the code below and return the complete code.",
        "This code raises a NameError because of a typo. Give me the corrected version in full.",
        "Correct the typo in the following function. Do not change anything else.",
    )
    return ask(rng, instructions, fenced(broken, "python"))


def add_docstring(rng: Random) -> str:
    """Give a function back with a docstring, comments or type hints."""
    code = snippet(rng) if rng.random() < 0.7 else script(rng)
    instructions = (
        "Add a docstring to this function and return the full code.",
        "Write a short docstring for the code below. Show the whole code, otherwise unchanged.",
        "Add one comment above every loop in this code and print all of it.",
        "Add type hints to this code and show the result.",
        "Document this Python code. Keep the code as it is and only add docstrings.",
    )
    return ask(rng, instructions, fenced(code.source, "python"))


def rename_variable(rng: Random) -> str:
    """Rename one identifier throughout a piece of code."""
    code = snippet(rng) if rng.random() < 0.7 else script(rng)
    old = rng.choice((*code.variables, code.name))
    new = rng.choice(
        ("entries", "data", "value", "rows", "current", "answer", "item_list", "process")
    )
    instructions = (
        f"Rename `{old}` to `{new}` everywhere in this code and show the full result.",
        f"In the code below, replace the name {old} by {new}. Return the complete code.",
        f"Please refactor: `{old}` should be called `{new}`. Print the whole code.",
    )
    return ask(rng, instructions, fenced(code.source, "python"))


def extract_quotes(rng: Random) -> str:
    """Copy sentences out of a passage verbatim."""
    text = passage(rng, num_sentences=rng.randint(5, 7))
    instructions = (
        f"Copy the three most important sentences about {text.subject} from this text, word for "
        "word.",
        "List every sentence of the text below that contains a number. Quote each one exactly.",
        "Quote, word for word, the first and the last sentence of this text.",
        "Extract all sentences that mention a person or a place, exactly as written, as a bullet "
        "list.",
        "Put each sentence of this paragraph on its own line. Do not change the words.",
    )
    return ask(rng, instructions, text.text)


def reformat_table(rng: Random) -> str:
    """Write a table in another notation."""
    rows = records(rng, rng.randint(3, 5))
    source, target = rng.sample(("a Markdown table", "CSV", "plain aligned columns", "JSON"), 2)
    writers: dict[str, Callable[[list[Record]], str]] = {
        "a Markdown table": as_markdown,
        "CSV": as_csv,
        "plain aligned columns": as_aligned,
        "JSON": as_json,
    }
    instructions = (
        f"Convert this table to {target}. Keep all rows and values.",
        f"The data below is {source}. Rewrite it as {target}.",
        f"Please reformat the following as {target}, in the same order.",
        f"Show the same data again as {target}.",
    )
    return ask(rng, instructions, writers[source](rows))


def csv_to_bullets(rng: Random) -> str:
    """Turn CSV lines into a bullet list."""
    rows = records(rng, rng.randint(3, 5))
    first, second = list(rows[0])[:2]
    instructions = (
        "Convert this CSV to a bullet list, one bullet per row, with every value.",
        f"Turn each line of this CSV into a bullet of the form '{first}: ..., {second}: ...' with "
        "all columns.",
        "Write the rows of this CSV file as a list. Start every item with a dash.",
        "List all entries from the CSV below as bullets. Keep the numbers exactly.",
    )
    return ask(rng, instructions, as_csv(rows))
