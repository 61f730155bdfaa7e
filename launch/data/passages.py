"""Short factual passages about invented towns, people, firms, species and events, with questions.

A passage is a shuffled choice of sentences, each with its own random facts, so that two passages of
the same subject share a shape but hardly a phrase.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from launch.data.words import (
    ADJECTIVES,
    ANIMALS,
    COLORS,
    COMPANIES,
    CROPS,
    FIRST_NAMES,
    INSTRUMENTS,
    JOBS,
    MATERIALS,
    MONTHS,
    PLACES,
    PRODUCTS,
    WEEKDAYS,
    date_of,
    full_name,
    pick,
    with_article,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A passage and questions that it answers."""

    subject: str
    sentences: tuple[str, ...]
    questions: tuple[str, ...]

    @property
    def text(self) -> str:
        """The sentences as one paragraph."""
        return " ".join(self.sentences)


def passage(rng: Random, *, num_sentences: int = 6) -> Passage:
    """A passage of about ``num_sentences`` sentences; the first one names the subject."""
    subject, opening, others, questions = rng.choice(_SUBJECTS)(rng)
    chosen = rng.sample(others, min(num_sentences - 1, len(others)))
    return Passage(subject=subject, sentences=(opening, *chosen), questions=tuple(questions))


_Parts = tuple[str, str, list[str], list[str]]


def _town(rng: Random) -> _Parts:
    town, mayor, year = pick(rng, PLACES), full_name(rng), rng.randint(1100, 1890)
    opening = (
        f"{town} is {with_article(pick(rng, ADJECTIVES))} town of "
        f"{rng.randint(3, 90)},{rng.randint(100, 999)} people on the banks of the river "
        f"{pick(rng, FIRST_NAMES)[:4]}en."
    )
    others = [
        f"It was founded in {year} by settlers who traded {pick(rng, MATERIALS)} and "
        f"{pick(rng, CROPS)}.",
        f"The market hall, built of {pick(rng, MATERIALS)}, burned down on {date_of(rng)} and was "
        f"rebuilt within {rng.randint(2, 9)} years.",
        f"The current mayor, {mayor}, was elected in {rng.randint(2008, 2024)} with "
        f"{rng.randint(41, 78)} percent of the vote.",
        f"Every {pick(rng, MONTHS)} the town holds {with_article(pick(rng, INSTRUMENTS))} "
        f"festival that draws {rng.randint(2, 40)},000 visitors.",
        f"A railway line to {pick(rng, PLACES)} opened in {rng.randint(1840, 1960)} and closed "
        f"again in {rng.randint(1961, 2001)}.",
        f"The largest employer is {pick(rng, COMPANIES)}, which makes {pick(rng, PRODUCTS)}s in a "
        "former mill.",
        f"Its coat of arms shows {with_article(pick(rng, COLORS))} {pick(rng, ANIMALS)} on "
        f"{with_article(pick(rng, COLORS))} field.",
    ]
    questions = [
        f"Who is the mayor of {town}?",
        f"When was {town} founded?",
        f"What does the coat of arms of {town} show?",
        f"Who is the largest employer in {town}?",
    ]
    return town, opening, others, questions


def _person(rng: Random) -> _Parts:
    name, job, city = full_name(rng), pick(rng, JOBS), pick(rng, PLACES)
    opening = (
        f"{name} was born on {date_of(rng, last_year=1990)} in {city} and trained as "
        f"{with_article(job)}."
    )
    others = [
        f"Before that, the family had run a small shop selling {pick(rng, PRODUCTS)}s in "
        f"{pick(rng, PLACES)}.",
        f"At the age of {rng.randint(19, 44)} {name} joined {pick(rng, COMPANIES)} and stayed for "
        f"{rng.randint(3, 29)} years.",
        f"The best known work, a study of the {pick(rng, COLORS)} {pick(rng, ANIMALS)}, sold "
        f"{rng.randint(3, 95)},000 copies.",
        f"Colleagues described {name.split()[0]} as {pick(rng, ADJECTIVES)}, "
        f"{pick(rng, ADJECTIVES)} and fond of the {pick(rng, INSTRUMENTS)}.",
        f"A school in {pick(rng, PLACES)} has carried the name since {rng.randint(1990, 2023)}.",
        f"In {rng.randint(1985, 2022)} the city of {city} awarded {name} a medal made of "
        f"{pick(rng, MATERIALS)}.",
    ]
    questions = [
        f"Where was {name} born?",
        f"What did {name} train as?",
        f"Which company did {name} join?",
        f"What is the best known work of {name}?",
    ]
    return name, opening, others, questions


def _company(rng: Random) -> _Parts:
    firm, founder, city = pick(rng, COMPANIES), full_name(rng), pick(rng, PLACES)
    product = pick(rng, PRODUCTS)
    opening = (
        f"{firm} was founded in {rng.randint(1921, 2015)} by {founder}, "
        f"{with_article(pick(rng, JOBS))} from {city}."
    )
    others = [
        f"Its first product was {with_article(pick(rng, COLORS))} {product} made of "
        f"{pick(rng, MATERIALS)}.",
        f"The firm now employs {rng.randint(40, 900)} people in {rng.randint(2, 12)} countries.",
        f"Revenue grew by {rng.randint(3, 38)} percent last year, to {rng.randint(4, 870)} "
        "million dollars.",
        f"Headquarters moved from {city} to {pick(rng, PLACES)} in {rng.randint(1990, 2024)} "
        "because of high rents.",
        f"On {date_of(rng, first_year=2015)} the board named {full_name(rng)} as chief executive.",
        f"Critics say that the {product} is {pick(rng, ADJECTIVES)} but too expensive at "
        f"{rng.randint(19, 480)} dollars.",
        f"A second plant in {pick(rng, PLACES)} will open next {pick(rng, MONTHS)}.",
    ]
    questions = [
        f"Who founded {firm}?",
        f"What was the first product of {firm}?",
        f"How many people does {firm} employ?",
        "Why did the headquarters move?",
    ]
    return firm, opening, others, questions


def _species(rng: Random) -> _Parts:
    animal, place = pick(rng, ANIMALS), pick(rng, PLACES)
    name = f"{pick(rng, COLORS)}-backed {animal}"
    opening = (
        f"The {name} is {with_article(pick(rng, ADJECTIVES))} {animal} found only in the hills "
        f"around {place}."
    )
    others = [
        f"Adults reach a length of {rng.randint(8, 140)} centimeters and weigh up to "
        f"{rng.randint(2, 40)} kilograms.",
        f"It was first described in {rng.randint(1790, 1985)} by {full_name(rng)}, "
        f"{with_article(pick(rng, JOBS))}.",
        f"The animal feeds mainly on {pick(rng, CROPS)} and builds its nest from "
        f"{pick(rng, MATERIALS)} and moss.",
        f"The young are born in {pick(rng, MONTHS)} and leave the nest after {rng.randint(3, 15)} "
        "weeks.",
        f"Fewer than {rng.randint(2, 95)}00 individuals remain, mostly because of roads and "
        "pesticides.",
        f"A reserve of {rng.randint(12, 760)} square kilometers was set up in "
        f"{rng.randint(1992, 2023)}.",
        f"Local people believe that seeing one on a {pick(rng, WEEKDAYS)} brings good luck.",
    ]
    questions = [
        f"Who first described the {name}?",
        f"What does the {name} eat?",
        f"How many individuals of the {name} remain?",
        f"Where is the {name} found?",
    ]
    return f"the {name}", opening, others, questions


def _event(rng: Random) -> _Parts:
    place, day = pick(rng, PLACES), date_of(rng, first_year=1995)
    what = rng.choice(("flood", "storm", "power cut", "fire", "rail strike", "book fair"))
    opening = (
        f"On {day} a {what} brought the town of {place} to a standstill for {rng.randint(3, 60)} "
        "hours."
    )
    others = [
        f'"We have never seen anything like it," said {full_name(rng)}, '
        f"{with_article(pick(rng, JOBS))} who lives near the station.",
        f"About {rng.randint(2, 80)}00 households were affected, according to "
        f"{pick(rng, COMPANIES)}.",
        f"The cause was traced to {with_article(pick(rng, ADJECTIVES))} cable behind the "
        f"{pick(rng, MATERIALS)} warehouse.",
        f'"The response was slow and badly organised," said {full_name(rng)} of the town council.',
        f"Schools stayed closed until {pick(rng, WEEKDAYS)}, and trains to {pick(rng, PLACES)} "
        "were cancelled.",
        f"Damage is estimated at {rng.randint(2, 95)} million dollars, of which a third is "
        "insured.",
        f'"By {pick(rng, WEEKDAYS)} evening we were back to normal," said {full_name(rng)}, who '
        f"led the repairs.",
    ]
    questions = [
        f"What happened in {place} on {day}?",
        "How many households were affected?",
        "What was the cause?",
        "How high is the estimated damage?",
    ]
    return f"the {what} in {place}", opening, others, questions


_SUBJECTS: tuple[Callable[[Random], _Parts], ...] = (_town, _person, _company, _species, _event)
