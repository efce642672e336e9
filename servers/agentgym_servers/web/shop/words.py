"""The words that the shop's products, people and reviews are made of; all of them invented."""

from __future__ import annotations

from typing import Final, NamedTuple


class Kind(NamedTuple):
    """A category, what is in it, and in which variants."""

    name: str
    things: tuple[str, ...]
    cents: tuple[int, int]
    colours: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()


_DARK = ("Black", "Navy", "Silver")
_WARM = ("Amber", "Ivory", "Sage")
_CLOTHES = ("S", "M", "L", "XL")
KINDS: Final = (
    Kind("Headphones", ("Headphones", "Earbuds", "Headset", "Neckband"), (1900, 18900), _DARK),
    Kind("Keyboards", ("Keyboard", "Number Pad", "Trackball", "Wrist Rest"), (1200, 14900), _DARK),
    Kind("Lamps", ("Desk Lamp", "Floor Lamp", "Night Light", "Lantern"), (1500, 12900), _WARM),
    Kind("Kitchen", ("Kettle", "Skillet", "Mixing Bowl", "Grater"), (900, 9900), _WARM),
    Kind("Candles", ("Taper Candles", "Pillar Candle", "Tea Lights", "Sconce"), (500, 4900), _WARM),
    Kind("Backpacks", ("Backpack", "Tote", "Messenger Bag", "Pouch"), (1400, 13900), _DARK),
    Kind("Jackets", ("Jacket", "Vest", "Parka", "Pullover"), (2900, 21900), _DARK, _CLOTHES),
    Kind("Shoes", ("Sneakers", "Sandals", "Boots", "Slippers"), (1900, 15900), _DARK, _CLOTHES),
    Kind("Tea", ("Green Tea", "Black Tea", "Herbal Tea", "Tea Sampler"), (400, 3900)),
    Kind("Garden", ("Watering Can", "Trowel", "Planter", "Bird Feeder"), (700, 8900), _WARM),
    Kind("Puzzles", ("Jigsaw", "Wooden Puzzle", "Card Game", "Dice Set"), (600, 5900)),
    Kind(
        "Fitness", ("Yoga Mat", "Jump Rope", "Foam Roller", "Resistance Band"), (800, 7900), _DARK
    ),
)
BRANDS: Final = (
    "Auvera", "Brindlo", "Cavena", "Dorwick", "Elmora", "Fennoway", "Galdrin", "Hollimar",
    "Ivendale", "Jorvane", "Kestrio", "Lumora", "Mirefold", "Norwend", "Ospra", "Pellago",
    "Quillon", "Rovanta", "Sundrell", "Tavisk",
)  # fmt: skip
LINES: Final = (
    "Drift", "Harbor", "Summit", "Meadow", "Ember", "Cobalt", "Willow", "Orbit", "Canyon",
    "Breeze", "Juniper", "Anchor", "Velvet", "Prairie", "Glacier", "Saffron",
)  # fmt: skip
FEATURES: Final = (
    "Made to last and easy to clean.",
    "Comes with a two year warranty.",
    "Packed in paper only, without plastic.",
    "A favourite of our customers since its launch.",
    "Designed in small batches by people who use it themselves.",
    "Light enough to take along on a trip.",
)
FIRST_NAMES: Final = (
    "Abel", "Bianca", "Cyrus", "Delia", "Ezra", "Farah", "Gideon", "Hanna", "Idris", "Jolene",
    "Kamal", "Lena", "Milo", "Nadia", "Orson", "Petra", "Quincy", "Rhea", "Silas", "Thea",
    "Umar", "Vera", "Wendell", "Xenia", "Yusuf", "Zelda",
)  # fmt: skip
LAST_NAMES: Final = (
    "Ashdown", "Birchall", "Corrigan", "Dunmore", "Eastwick", "Farrow", "Gladwin", "Hartnell",
    "Inskip", "Jessop", "Kirkwood", "Larkin", "Marchbank", "Nettleton", "Oakhurst", "Penhale",
)  # fmt: skip
STREETS: Final = (
    "Willow Way",
    "Mill Lane",
    "Station Road",
    "Cedar Street",
    "Harbor View",
    "Elm Court",
)
PLACES: Final = (
    ("Chicago", "Illinois", "60601"),
    ("Boston", "Massachusetts", "02110"),
    ("Denver", "Colorado", "80203"),
    ("Portland", "Oregon", "97205"),
    ("Austin", "Texas", "78701"),
    ("Pittsburgh", "Pennsylvania", "15213"),
)
PRAISE: Final = (
    "it arrived a day early", "the colour is lovely", "it feels solid", "it was a great gift",
    "my sister wants one too", "it is worth the price", "setup took one minute",
)  # fmt: skip
COMPLAINTS: Final = (
    "the box was damaged", "it smells of glue", "it is smaller than expected",
    "the instructions are missing", "the finish scratches easily", "it squeaks",
)  # fmt: skip
TITLES: Final = ("Send it back", "Not for me", "It is fine", "Rather good", "Love it")
SEARCHES: Final = (
    "kettle", "yoga mat", "desk lamp", "boots", "green tea", "wooden puzzle", "backpack",
    "headset", "tea lights", "parka", "planter", "keyboard", "lantern", "dice set", "sandals",
    "skillet", "jump rope", "tote",
)  # fmt: skip
