"""The words of which the forum's people, boards, submissions and comments are made."""

from __future__ import annotations

from typing import Final

from agentgym_servers.web.accounts import ACCOUNTS

ACCOUNT: Final = ACCOUNTS["reddit"]
"""Who the agent is here."""

BOARDS: Final[tuple[tuple[str, str, str], ...]] = (
    ("aquariums", "Fish tanks great and small", "filter|heater|driftwood|snail|shrimp"),
    ("astronomy", "Looking up at night", "telescope|nebula|eclipse|star chart|tripod"),
    ("baking", "Bread, cake and patience", "sourdough|rye loaf|oven stone|scale|brioche"),
    ("beekeeping", "Hives and honey", "smoker|queen|honey frame|veil|swarm"),
    ("birdwatching", "Feathers and notebooks", "binoculars|owl box|warbler|feeder|field guide"),
    ("boardgames", "Dice, cards and tables", "card sleeve|dice tower|expansion|rulebook|solo mode"),
    ("books", "What we read", "novel|reading lamp|paperback|library card|bookmark"),
    ("camping", "Nights outdoors", "tent|sleeping bag|camp stove|lantern|hammock"),
    ("chess", "Sixty-four squares", "endgame|opening|clock|gambit|puzzle book"),
    ("cycling", "Two wheels", "saddle|chain|pannier|helmet|gravel tyre"),
    ("drawing", "Pencil and paper", "sketchbook|charcoal|eraser|ink pen|drawing board"),
    ("fermentation", "Jars that bubble", "kimchi|crock|kombucha|brine|airlock"),
    ("fountainpens", "Nibs and ink", "nib|converter|blue ink|blotter|inkwell"),
    ("gardening", "Soil under the nails", "tomato|compost bin|trowel|rose|raised bed"),
    ("hiking", "Up the hill", "boot|map case|walking pole|rain jacket|ridge trail"),
    ("keyboards", "Switches and caps", "keycap|switch|wrist rest|stabiliser|split layout"),
    ("knitting", "Loops and rows", "sock|wool|circular needle|shawl|stitch marker"),
    ("modelrailways", "Small trains", "signal box|tunnel|turntable|loco|layout board"),
    ("pottery", "Clay and fire", "glaze|kiln|wheel|mug|teapot"),
    ("radio", "Waves and wires", "antenna|receiver|morse key|valve|crystal set"),
    ("rowing", "Backwards, quickly", "oar|scull|rowlock|ergometer|river race"),
    ("sewing", "Seams and hems", "bobbin|overlocker|linen|zip|pattern paper"),
    ("tea", "Leaves and water", "gaiwan|oolong|kettle|tea tray|green tea"),
    ("typography", "Letters on purpose", "serif|ligature|type specimen|grid|drop cap"),
    ("woodworking", "Sawdust", "hand plane|dovetail|chisel|workbench|oak board"),
)
"""(name, description, things spoken of)."""

FIRST: Final = [
    "Amber",
    "Birch",
    "Cedar",
    "Dapper",
    "Ember",
    "Fern",
    "Gentle",
    "Hazel",
    "Iron",
    "Jolly",
    "Kelp",
    "Lunar",
    "Mossy",
    "Nimble",
    "Ochre",
]
SECOND: Final = [
    "otter",
    "lantern",
    "marmot",
    "compass",
    "sparrow",
    "kettle",
    "badger",
    "pebble",
    "thistle",
    "heron",
]

TITLES: Final = [
    "What {thing} would you choose for a beginner?",
    "My first {thing} after a long winter",
    "A short guide to the {thing}",
    "Is a second-hand {thing} worth the trouble?",
    "Three mistakes I made with my {thing}",
    "How do you look after your {thing}?",
    "Unpopular opinion on the {thing}",
    "The {thing} that my grandmother left me",
    "Show us your {thing} this weekend",
    "Why nobody talks about the {thing}",
    "Looking for a quiet {thing}",
    "I repaired my {thing} with a spoon",
    "Weekly thread about the {thing}",
    "The history of the {thing} in ten pictures",
]

OPENINGS: Final = [
    "I have been thinking about this since the spring.",
    "A friend asked me and I had no answer.",
    "This took me the better part of a month.",
    "Nothing in the old threads settles it.",
    "I am new here, so please be kind.",
    "After ten years I still get this wrong.",
]
MIDDLES: Final = [
    "The price has doubled where I live.",
    "Mine lasted two seasons before it gave up.",
    "The manual is of no use at all.",
    "It works better on cold mornings.",
    "My neighbour swears by the opposite.",
    "The small version is easier to keep clean.",
]
ENDINGS: Final = [
    "What do you do?",
    "Tell me what you would change.",
    "I would buy it again.",
    "More pictures next week.",
    "Thank you for reading.",
    "Corrections are welcome.",
]
REMARKS: Final = [
    "I agree with every word.",
    "That has not been my experience.",
    "Try it with warm water first.",
    "Could you post a picture?",
    "This saved me a lot of money, thank you.",
    "Mine arrived broken.",
    "The old model was better.",
    "You should ask in the weekly thread.",
    "I learned this the hard way.",
    "Patience is all you need.",
    "My club recommends the same.",
    "Not worth it, in my opinion.",
    "Where did you find it?",
    "I would wait for the autumn.",
    "Please keep us posted.",
]
ADDITIONS: Final = [
    "It held for a year.",
    "Ask me again in May.",
    "The second try went well.",
    "My sister disagrees.",
    "Measure twice.",
    "Keep the receipt.",
    "A small one is enough.",
    "Do it on a dry day.",
]
BIOS: Final = [
    "I collect maps.",
    "Retired, mostly outdoors.",
    "Ask me about rivers.",
    "Here to learn.",
    "Two cats, one kiln.",
    "I answer slowly but I answer.",
]
