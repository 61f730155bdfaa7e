"""Kinds of prompts whose answer is the model's own: questions, stories, sums and ideas."""

from __future__ import annotations

from random import Random

from launch.data.words import (
    ADJECTIVES,
    ANIMALS,
    COLORS,
    COMPANIES,
    CROPS,
    FIRST_NAMES,
    JOBS,
    MONTHS,
    PLACES,
    PRODUCTS,
    TOPICS,
    pick,
    with_article,
)


def open_question(rng: Random) -> str:
    """Ask about a general topic."""
    topic = pick(rng, TOPICS)
    return rng.choice(
        (
            f"Explain {topic}.",
            f"Can you explain {topic} to a ten year old?",
            f"Write two paragraphs about {topic}.",
            f"I have to give a short talk on {topic}. What should I say?",
            f"What do most people get wrong about {topic}?",
            f"In a few sentences: {topic}?",
        )
    )


def short_story(rng: Random) -> str:
    """Ask for a story, a poem or a dialogue."""
    hero, animal, place = pick(rng, FIRST_NAMES), pick(rng, ANIMALS), pick(rng, PLACES)
    trait, thing = pick(rng, ADJECTIVES), pick(rng, PRODUCTS)
    return rng.choice(
        (
            f"Write a short story about {with_article(trait)} {animal} who finds a {thing} in "
            f"{place}.",
            f"Tell me a bedtime story about {hero}, {with_article(trait)} {pick(rng, JOBS)} from "
            f"{place}.",
            f"Write a poem about {with_article(pick(rng, COLORS))} {thing} in {pick(rng, MONTHS)}.",
            f"Write a dialogue between {hero} and a talking {animal} about a lost {thing}.",
            f"Invent a legend that explains how {place} got its name.",
            f"Write the opening paragraph of a mystery novel set in {place} in "
            f"{pick(rng, MONTHS)}.",
        )
    )


def maths_word_problem(rng: Random) -> str:
    """Ask for the solution of a small arithmetic problem."""
    name, thing, crop = pick(rng, FIRST_NAMES), pick(rng, PRODUCTS), pick(rng, CROPS)
    first, second, third = rng.randint(3, 40), rng.randint(2, 12), rng.randint(5, 90)
    problem = rng.choice(
        (
            f"{name} buys {second} {thing}s for {first} dollars each and pays with "
            f"{first * second + third} dollars. How much change does {name} get?",
            f"A farm grows {first} rows of {crop} with {third} plants in each row. Bad weather "
            f"destroys {second} rows. How many plants are left?",
            f"A train travels {third} kilometers in the first hour and {first} kilometers more in "
            f"each of the next {second} hours. How far does it travel in all?",
            f"{name} has {third} {thing}s and gives {second} of them to each of "
            f"{rng.randint(2, 4)} friends. How many remain?",
            f"A worker at {pick(rng, COMPANIES)} packs {first} boxes an hour for {second} hours. "
            f"Each box holds {third} parts. How many parts are packed?",
            f"The price of a {thing} rises by {second} percent from {third * 10} dollars. What is "
            "the new price?",
        )
    )
    return problem + rng.choice(
        (" Think step by step.", " Show your work.", "", " Give the answer only at the end.")
    )


def brainstorm(rng: Random) -> str:
    """Ask for a list of ideas."""
    count, thing, place = rng.randint(5, 12), pick(rng, PRODUCTS), pick(rng, PLACES)
    return rng.choice(
        (
            f"Give me {count} ideas for a birthday party for {with_article(pick(rng, JOBS))}.",
            f"Suggest {count} names for a company that sells {pick(rng, ADJECTIVES)} {thing}s.",
            f"What could I do on a rainy weekend in {place}? List {count} things.",
            f"List {count} unusual uses for an old {thing}.",
            f"Brainstorm {count} slogans for {pick(rng, COMPANIES)}.",
            f"What questions should I ask in an interview with {with_article(pick(rng, JOBS))}? "
            f"Give me {count}.",
            f"Plan a {rng.randint(2, 7)}-day trip to {place} for a family that loves "
            f"{pick(rng, ANIMALS)}s.",
        )
    )
