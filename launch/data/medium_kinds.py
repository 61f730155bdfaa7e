"""Kinds of prompts whose answer takes phrases from the prompt but adds words of its own."""

from __future__ import annotations

from random import Random

from launch.data.heavy_kinds import ask, fenced
from launch.data.passages import passage
from launch.data.records import as_json, config_file, records
from launch.data.snippets import snippet
from launch.data.words import (
    COMPANIES,
    DEPARTMENTS,
    MONTHS,
    PLACES,
    PRODUCTS,
    WEEKDAYS,
    full_name,
    pick,
)


def summarise_with_quotes(rng: Random) -> str:
    """Summarise a passage, quoting from it."""
    text = passage(rng, num_sentences=rng.randint(5, 7))
    instructions = (
        "Summarize the following text in two sentences and quote one sentence from it.",
        "Write a short summary of this text. Use at least one direct quotation.",
        f"What does the text say about {text.subject}? Answer in three sentences with quotes.",
        "Give the main points of this text as a list, and back each one with a short quote.",
        "Summarize this article.",
    )
    return ask(rng, instructions, text.text)


def answer_from_passage(rng: Random) -> str:
    """Answer one to three questions from a passage."""
    text = passage(rng, num_sentences=7)
    asked = rng.sample(text.questions, rng.randint(1, 3))
    numbered = "\n".join(f"{number}. {question}" for number, question in enumerate(asked, start=1))
    instructions = (
        "Answer these questions in full sentences, using only the text.",
        "Read the text and answer the questions. Repeat each question before its answer.",
        "Use the passage to answer. If the text does not say it, say so.",
    )
    return ask(rng, instructions, f"Text: {text.text}\n\nQuestions:\n{numbered}")


def translate_config_keys(rng: Random) -> str:
    """Write a configuration in another notation or naming style."""
    source = config_file(rng)
    instructions = (
        "Convert this configuration to JSON. Write the keys in camelCase and keep the values.",
        "Rewrite this configuration as YAML with the keys in upper case.",
        "Rewrite this configuration as shell environment variables with the prefix APP_.",
        "Translate the setting names below into plain English and list each with its value.",
        "Convert these settings to a Python dictionary and explain each in a comment.",
    )
    return ask(rng, instructions, fenced(source))


def continue_list(rng: Random) -> str:
    """Add items to a list that follows a pattern."""
    template = rng.choice(_LIST_PATTERNS)
    count = rng.randint(3, 6)
    items = [
        template.format(
            number=number,
            name=full_name(rng),
            place=pick(rng, PLACES),
            product=pick(rng, PRODUCTS),
            day=pick(rng, WEEKDAYS),
            month=pick(rng, MONTHS),
            price=rng.randint(3, 240),
        )
        for number in range(1, count + 1)
    ]
    more = rng.randint(4, 8)
    instructions = (
        f"Continue this list with {more} more items in the same style.",
        f"Add {more} entries to the list below. Follow the pattern exactly.",
        f"Here is the start of a list. Write the next {more} lines.",
    )
    return ask(rng, instructions, "\n".join(items))


def rewrite_email(rng: Random) -> str:
    """Rewrite an email in another tone, keeping its facts."""
    sender, receiver, product = full_name(rng), full_name(rng), pick(rng, PRODUCTS)
    opening = rng.choice(("Hi", "Hello", "Dear", "Hey"))
    facts = (
        f"the {product} we ordered from {pick(rng, COMPANIES)} has not arrived in "
        f"{pick(rng, PLACES)} yet",
        f"the meeting on {pick(rng, WEEKDAYS)} at {rng.randint(8, 17)}:30 has moved to room "
        f"{rng.randint(100, 499)}",
        f"the {pick(rng, DEPARTMENTS)} team needs the report by {rng.randint(2, 28)} "
        f"{pick(rng, MONTHS)}",
        f"invoice {rng.randint(1_000, 9_999)} over {rng.randint(50, 4_000)} dollars is still open",
        f"I will be away from {pick(rng, WEEKDAYS)} and {full_name(rng)} will take my calls",
    )
    first, second, third = rng.sample(facts, 3)
    mail = (
        f"{opening} {receiver.split()[0]},\n\nI wanted to tell you that {first}. Also, {second}. "
        f"And please note that {third}. Can you look into this and get back to "
        f"me?\n\nThanks\n{sender}"
    )
    instructions = (
        "Rewrite this email in a more formal tone. Keep all facts.",
        "Make this email friendlier but keep the details.",
        "Correct and polish the following email.",
        f"Write the answer that {receiver.split()[0]} could send to this email, going through "
        "each point.",
        "Shorten this email without losing any date, number or name.",
    )
    return ask(rng, instructions, mail)


def explain_code_or_data(rng: Random) -> str:
    """Explain code line by line, or describe records in prose."""
    if rng.random() < 0.5:
        instructions = (
            "Explain this code line by line. Quote each line before you explain it.",
            "What does this function do? Walk through its statements one by one.",
            "Explain the code below to a beginner and show an example of a call.",
        )
        return ask(rng, instructions, fenced(snippet(rng).source, "python"))
    instructions = (
        "Describe each record of this JSON in one English sentence.",
        "Write a short report about the data below. Mention every entry.",
        "Compare the entries below and say which one stands out and why.",
    )
    return ask(
        rng, instructions, as_json(records(rng, rng.randint(2, 4)), indent=rng.choice((None, 2)))
    )


_LIST_PATTERNS = (
    "{number}. {name} - {place} - ${price}",
    "- Day {number}: travel to {place} with {name}",
    "* {product} ({place}): {price} pieces",
    "{number}) On {day}, {name} buys a {product} for {price} dollars.",
    "Step {number}: put the {product} on shelf {price}.",
    "{month} {number}: {name} visits {place}.",
)
