"""The English of the story task, and its words as tokens of the synthetic tasks."""

from __future__ import annotations

from attendre_core.evaluation.tasks.synthetic_words import (
    ANSWER,
    BEGIN,
    CONTEXT,
    KEYS,
    NOISE,
    QUESTIONS,
    VALUES,
)

__all__ = ["ADJECTIVES", "FACTS", "FILLERS", "OPENINGS", "PEOPLE", "PLACES", "joined", "token_of"]

PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo")
PLACES = (
    "abbey", "bakery", "bridge", "castle", "church", "cliff", "dam", "farm", "ferry", "forest",
    "fountain", "garden", "harbour", "hill", "inn", "lake", "library", "lighthouse", "market",
    "mill", "museum", "orchard", "park", "pond", "quarry", "river", "school", "station", "theatre",
    "tower", "well", "windmill",
)  # fmt: skip
ADJECTIVES = ("narrow", "new", "red", "small", "white", "yellow")

#: How a text begins.
OPENINGS = (
    "Where is {person}'s house ?",
    "Now , where is {person}'s house ?",
    "Tell me : where is {person}'s house ?",
)
#: Ways to say where somebody lives: the place comes 6 to 8 words before the name.
FACTS = (
    "Near the {place} , in a {adjective} house , lives {person} .",
    "The house near the {place} , people say , belongs to {person} .",
    "Close to the {place} , behind a {adjective} gate , lives {person} .",
    "By the {place} stands the {adjective} house of {person} .",
    "Whoever walks past the {place} passes the {adjective} door of {person} .",
)
#: What else happens. The short ones fill the end of a text.
FILLERS = (
    "The morning was cold and the streets were empty .",
    "A grey cat slept on the warm stones .",
    "Nobody could say when the rain would stop .",
    "Two children carried a basket of apples home .",
    "The clock struck nine and fell silent .",
    "Somebody had left a blue umbrella on the bench .",
    "The postman came late , as he did on Mondays .",
    "Gulls circled over the roofs and cried all day .",
    "There was bread on the table and soup on the stove .",
    "A letter had come from a town far away .",
    "In the evening the lamps were lit one by one .",
    "The wind turned and brought the smell of the sea .",
    "They talked about the weather until it was dark .",
    "A dog barked twice , then all was quiet again .",
    "The snow had melted and the paths were muddy .",
    "Someone was playing the piano behind an open window .",
    "Carts rolled past , loaded with hay and wood .",
    "The summer had been dry and the fields were brown .",
    "A boat came in at noon with nothing to sell .",
    "On Sunday the whole village slept a little longer .",
    "It rained .",
    "The bells rang .",
    "Time passed slowly .",
    "Nothing else was said .",
    "The night was very still .",
    "By then the moon had risen .",
)

#: All other words and signs: each of them shares one of the tokens that mean nothing.
_OTHERS = sorted(
    {w for text in (*OPENINGS, *FACTS, *FILLERS) for w in text.split() if "{" not in w}
    | set(ADJECTIVES)
)
_TOKENS = {
    **{word: NOISE[i % len(NOISE)] for i, word in enumerate(_OTHERS)},
    **dict(zip(PEOPLE, KEYS, strict=True)),
    **{f"{name}'s": token for name, token in zip(PEOPLE, QUESTIONS, strict=True)},
    **dict(zip(PLACES, VALUES, strict=True)),
    "": BEGIN,
    "?": CONTEXT,
    "Answer:": ANSWER,
}


def token_of(word: str) -> int:
    """Return the token of a word.

    Examples
    --------
    >>> from attendre_core.evaluation.tasks import word
    >>> [word(token_of(w)) for w in ("Anna's", "Anna", "harbour", "?")]
    ['question0', 'key0', 'value12', 'context:']
    """
    return _TOKENS[word]


def joined(words: list[str]) -> list[str]:
    """Return the text of each word with its space; joined, they are the text.

    Examples
    --------
    >>> "".join(joined("Where is it , Anna ?".split()))
    ' Where is it, Anna?'
    """
    return [word if word in {"", ".", ",", "?", ":"} else f" {word}" for word in words]
