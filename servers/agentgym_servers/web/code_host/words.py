"""The words of which the code host's developers, projects, issues and commits are made."""

from __future__ import annotations

from typing import Final

from agentgym_servers.web.accounts import ACCOUNTS

ACCOUNT: Final = ACCOUNTS["gitlab"]
"""Who the agent is here."""

FIRST: Final = ("Ada", "Bruno", "Clara", "Dario", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas")
LAST: Final = ("Abel", "Brandt", "Castell", "Duarte")
GROUPS: Final = ("openloom", "tinytools", "harbor", "quietdata")
PROJECTS: Final[tuple[tuple[str, str], ...]] = (
    ("acorn-parser", "Reads configuration files and says where they are wrong"),
    ("barometer", "Charts the weather of a garden"),
    ("cargo-pilot", "Plans the route of a parcel through a warehouse"),
    ("dusk-theme", "A colour scheme for late evenings"),
    ("echo-server", "Answers every message with the same message"),
    ("fieldnotes", "Keeps notes of a walk, with pictures and places"),
    ("gridlock", "Simulates the traffic of a small town"),
    ("hexbrew", "Calculates recipes of home-made lemonade"),
    ("inkwell", "An editor for letters that are written by hand"),
    ("jigsaw", "Cuts pictures into pieces and puts them together"),
    ("kiteflow", "Moves data between tables on a schedule"),
    ("lampwork", "Lights a room by the time of day"),
    ("moonphase", "Prints the phase of the moon for any date"),
    ("nightowl", "Alarms for people who sleep late"),
    ("orchard", "An inventory of fruit trees and their harvest"),
    ("paperboat", "Folds long documents into short summaries"),
    ("quillpress", "Typesets small books"),
    ("rainbarrel", "Collects logs until somebody needs them"),
    ("sundial", "Time zones without tears"),
    ("tidepool", "A library of small data structures"),
    ("umbrella", "Retries requests when the network is wet"),
    ("vinegar", "Finds code that has gone sour"),
    ("windmill", "Runs jobs in turn"),
    ("yarnball", "Untangles the dependencies of a project"),
    ("zephyr-docs", "The handbook of a club of volunteers"),
)
"""(name, description)."""
LABELS: Final = ("bug", "documentation", "enhancement", "help wanted", "question", "security")
PARTS: Final = (
    "parser",
    "start page",
    "export",
    "settings dialog",
    "search index",
    "log reader",
    "installer",
    "calendar view",
    "cache",
    "command line",
    "import wizard",
    "tooltip",
)
TROUBLES: Final = (
    "The {part} stops on an empty file",
    "Add a dark mode to the {part}",
    "Document how the {part} is configured",
    "The {part} is slow with ten thousand rows",
    "Wrong date in the {part} after midnight",
    "Let the {part} remember its last choice",
    "The {part} ignores upper case letters",
    "Translate the {part} into Portuguese",
)
CHANGES: Final = (
    "Make the {part} faster",
    "Rewrite the {part} without globals",
    "Test the {part} with odd input",
    "Remove what the {part} no longer uses",
    "Explain the {part} in the handbook",
    "Fix a rounding error in the {part}",
)
REASONS: Final = (
    "It happens on every second run.",
    "Several people asked for it.",
    "I can help if somebody shows me where to begin.",
    "The last release did not have this problem.",
    "A screenshot would not show it, so here are the steps.",
)
NOTES: Final = (
    "I can reproduce this.",
    "Thank you, looks good to me.",
    "Could you add a test?",
    "Let us wait for the next milestone.",
    "This depends on the other branch.",
)
