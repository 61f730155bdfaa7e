"""Word banks for the generated prompts: names, places, things and topics, all invented or everyday.

Nothing here is taken from a data set; fictional names keep a model from answering out of memory.
"""

from __future__ import annotations

from random import Random


def words(text: str) -> tuple[str, ...]:
    """The words of a text: word banks are easier to read as prose."""
    return tuple(text.split())


FIRST_NAMES = words(
    "Ada Alvaro Amara Anika Bogdan Brigid Cedric Chiara Dalia Dmitri Elena Emeka Farid Fiona "
    "Goran Greta Hana Hugo Ines Ivar Jamila Jonas Kaito Kerstin Lena Luca Mateo Mira Nadia "
    "Nils Olga Oscar Petra Priya Quentin Rana Rosa Samir Sigrid Tariq Tessa Uma Viktor Wanda "
    "Xenia Yara Yusuf Zeno Zofia"
)
SURNAMES = words(
    "Abara Bellamy Castell Dorn Eklund Farrow Gellert Harrow Ibarra Jansen Kovac Lindqvist "
    "Marsh Navarro Okafor Pemberton Quist Rossi Sandoval Tanaka Ullman Vasquez Whitlock Yilmaz "
    "Zamora Ashdown Brandt Cuevas Delacroix Engel Fontaine Grimaldi Holt Iversen Joshi"
)
PLACES = (
    *words(
        "Ardmore Bellhaven Corvale Dunmere Eastwick Fairholt Granby Hollins Irongate Jarrow "
        "Kestrel Lowfield Marrick Northam Oakley Penrith Quarry Ravensworth Stonebridge "
        "Thornbury Underhill Velmont Westmoor Yarrow"
    ),
    "Port Calder",
    "Saint Orla",
    "Lake Merrin",
    "Cape Rowan",
    "New Halden",
)
COMPANIES = (
    "Northwind Foods",
    "Bluefin Robotics",
    "Cedar & Stone",
    "Helio Systems",
    "Brightwater Energy",
    "Tessellate Labs",
    "Marigold Books",
    "Ironleaf Tools",
    "Lumen Optics",
    "Copperfield Cycles",
    "Saltmarsh Brewing",
    "Quiet Harbor Insurance",
    "Vela Airlines",
    "Orchard Lane Bakery",
    "Pinecone Analytics",
    "Silverthread Textiles",
)
PRODUCTS = (
    *words(
        "lamp kettle backpack keyboard monitor notebook bicycle tent headset blender camera "
        "printer scarf drill jacket thermos router tripod charger speaker"
    ),
    "desk chair",
    "water filter",
    "garden hose",
    "coffee grinder",
)
COLORS = words("red blue green amber grey black white violet teal orange ivory crimson")
ADJECTIVES = words(
    "quiet sturdy modern ancient narrow bright careful gentle remote curious reliable compact "
    "generous stubborn hollow patient vivid plain rapid fragile"
)
ANIMALS = words(
    "otter heron badger lynx falcon tortoise beetle salmon marten gecko crane hedgehog newt "
    "bison viper moth"
)
MATERIALS = words("oak granite copper linen clay glass bamboo wool steel slate cork brass leather")
CROPS = words("barley olives lavender apples hops lentils grapes maize saffron walnuts")
JOBS = words(
    "carpenter engineer botanist teacher pilot chemist librarian architect nurse baker "
    "historian surveyor translator geologist potter accountant"
)
INSTRUMENTS = words("cello oboe harp piano trumpet fiddle accordion clarinet")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
DEPARTMENTS = (
    "sales",
    "finance",
    "support",
    "research",
    "logistics",
    "design",
    "legal",
    "operations",
    "marketing",
)
TOPICS = (
    "why the sky is blue",
    "how bread rises",
    "the causes of ocean tides",
    "how vaccines work",
    "why leaves change color in autumn",
    "how a refrigerator keeps food cold",
    "the history of the printing press",
    "how bees find flowers",
    "why we need sleep",
    "how bridges carry weight",
    "what makes music sound sad",
    "how glaciers shape valleys",
    "why prices rise over time",
    "how a seed becomes a tree",
    "how the internet delivers a web page",
    "why some animals hibernate",
    "how to learn a new language",
    "what a healthy breakfast looks like",
    "how elections work",
    "why cities grow near rivers",
    "how a bicycle stays upright",
    "the benefits of regular walking",
    "how earthquakes are measured",
    "why salt melts ice",
    "how to make new friends in a new town",
    "what causes thunder",
    "how paper is recycled",
    "why some materials conduct electricity",
)


def pick(rng: Random, bank: tuple[str, ...]) -> str:
    """One entry of a bank."""
    return rng.choice(bank)


def full_name(rng: Random) -> str:
    """A first name and a surname."""
    return f"{pick(rng, FIRST_NAMES)} {pick(rng, SURNAMES)}"


def with_article(noun: str) -> str:
    """The noun with "a" or "an"."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def email_of(name: str) -> str:
    """A mail address made from a full name."""
    return f"{name.lower().replace(' ', '.')}@example.com"


def date_of(rng: Random, *, first_year: int = 1890, last_year: int = 2024) -> str:
    """A date in words."""
    year = rng.randint(first_year, last_year)
    return f"{rng.randint(1, 28)} {pick(rng, MONTHS)} {year}"
