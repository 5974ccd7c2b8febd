"""Labels of tokens to spans: schemes, words, scores, order, and when a span comes out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendre_core.zoo import spans as module
from attendre_core.zoo.spans import Span, SpanDecoder, Tag, tags_of

TYPES = ("A", "B")


def decoded(text, tokens, labels, aggregation="first", late=False):
    """Decode tokens (start, end, label, score); the text comes at once, or with each token."""
    decoder = SpanDecoder(labels, aggregation)
    fed, found = 0, []
    if not late:
        decoder.feed(text)
        fed = len(text)
    for start, end, label, score in tokens:
        if end > fed:
            decoder.feed(text[fed:end])
            fed = end
        found += decoder.add(start, end, labels.index(label), score)
    return found + decoder.end()


def tokens_of(text, labels):
    """One token for each word of a text, with a score of 1/2 each."""
    places, at = [], 0
    for word in text.split(" "):
        places.append((at, at + len(word)))
        at += len(word) + 1
    return [(*place, label, 0.5) for place, label in zip(places, labels, strict=True)]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("O B-A I-A O B-A B-A", ["b c", "e", "f"]),
        ("I-A I-A B-A I-B O I-A", ["a b", "c", "d", "f"]),  # IOB1: B- only between neighbours
        ("U-A U-A B-A I-A L-A I-A", ["a", "b", "c d e", "f"]),
        ("S-A B-A E-A E-A I-A S-B", ["a", "b c", "d", "e", "f"]),
        ("A A O B A A", ["a b", "d", "e f"]),  # no prefixes
        ("O O O O O O", []),
        ("E-mail E-mail O phone O O", ["a b", "d"]),
    ],
)
def test_schemes(labels, expected):
    words = labels.split()
    every = sorted({*words, "O"} | ({"B-A", "I-A", "B-B"} if "-A" in labels else set()))
    found = decoded("a b c d e f", tokens_of("a b c d e f", words), every)
    assert [span.text for span in found] == expected
    assert all(span.score == 0.5 for span in found)


def test_labels_of_other_shapes():
    assert tags_of(["O", "B-", "B", "-x", "I-a-b", "U-a", "U-a-b", "L_a"]) == (
        Tag(None), Tag("B-"), Tag("B"), Tag("-x"), Tag("a-b"), Tag("U-a"),
        Tag("a-b", begins=True, ends=True), Tag("L_a"),
    )  # fmt: skip


def written(spans, count, scheme):
    """Write spans of words, (first, behind the last, type), in a scheme."""
    labels = ["O"] * count
    for number, (start, end, label) in enumerate(spans):
        before = spans[number - 1] if number else None
        for word in range(start, end):
            first, last = word == start, word == end - 1
            if scheme == "IOB1":
                touches = first and before is not None and before[1:] == (start, label)
                prefix = "B" if touches else "I"
            elif scheme == "BIO":
                prefix = "B" if first else "I"
            else:
                single, begin, inside, end_letter = scheme
                prefix = single if first and last else begin if first else inside
                prefix = end_letter if last and not first else prefix
            labels[word] = f"{prefix}-{label}"
    return labels


@st.composite
def spans_of_words(draw):
    count, spans, at = draw(st.integers(1, 20)), [], 0
    while at < count:
        start = at + draw(st.integers(0, 2))
        end = start + draw(st.integers(1, 4))
        if end > count:
            break
        spans.append((start, end, draw(st.sampled_from(TYPES))))
        at = end
    return count, spans


@given(
    case=spans_of_words(), scheme=st.sampled_from(["BIO", "IOB1", "UBIL", "SBIE"]), data=st.data()
)
def test_what_is_written_is_read(case, scheme, data):
    count, spans = case
    words = [f"w{n}" for n in range(count)]
    text = " ".join(words)
    scores = data.draw(st.lists(st.floats(0.1, 1), min_size=count, max_size=count))
    labels = written(spans, count, scheme)
    every = ["O", *(f"{p}-{t}" for p in "BILUES" for t in TYPES)]
    places = tokens_of(text, labels)
    tokens = [(s, e, label, score) for (s, e, label, _), score in zip(places, scores, strict=True)]
    expected = [
        Span(
            label,
            " ".join(words[start:end]),
            places[start][0],
            places[end - 1][1],
            sum(scores[start:end]) / (end - start),
        )
        for start, end, label in spans
    ]
    for late in (False, True):
        found = decoded(text, tokens, every, late=late)
        assert [span[:4] for span in found] == [span[:4] for span in expected]
        assert [span.score for span in found] == pytest.approx([s.score for s in expected])


@pytest.mark.parametrize(
    ("text", "pieces", "first", "simple"),
    [
        # A word has the label of its first token.
        ("Lovelace x", [(0, 4, "B-A"), (4, 8, "O"), (9, 10, "O")], ["Lovelace"], ["Love"]),
        ("Lovelace x", [(0, 4, "O"), (4, 8, "B-A"), (9, 10, "O")], [], ["lace"]),
        # Punctuation and Han are words by themselves, marks are not.
        ("it's", [(0, 2, "B-A"), (2, 3, "O"), (3, 4, "B-A")], ["it", "s"], ["it", "s"]),
        ("日本", [(0, 1, "B-A"), (1, 2, "O")], ["日"], ["日"]),
        ("कानून", [(0, 1, "B-A"), (1, 5, "O")], ["कानून"], ["क"]),
        # The space before a word as a token of its own, in the text or not in it.
        ("x Ada", [(0, 1, "O"), (1, 2, "B-A"), (2, 5, "O")], ["Ada"], []),
        ("Ada", [(0, 0, "B-A"), (0, 3, "O")], ["Ada"], []),
        # Bytes of one character.
        ("é!", [(0, 1, "B-A"), (0, 1, "B-A"), (1, 2, "O")], ["é"], ["é"]),
    ],
)
def test_words(text, pieces, first, simple):
    labels = ["O", "B-A", "I-A"]
    tokens = [(*piece, 0.5) for piece in pieces]
    assert [span.text for span in decoded(text, tokens, labels)] == first
    assert [span.text for span in decoded(text, tokens, labels, "simple")] == simple


def test_the_score_of_a_word_is_that_of_its_first_token():
    tokens = [(0, 2, "B-A", 0.5), (2, 4, "I-A", 0.1), (5, 6, "I-A", 1.0)]
    (found,) = decoded("abcd e", tokens, ["O", "B-A", "I-A"])
    assert found == Span("A", "abcd e", 0, 6, 0.75)
    (found,) = decoded("abcd e", tokens, ["O", "B-A", "I-A"], "simple")
    assert found.score == pytest.approx(1.6 / 3)


def test_white_space_is_trimmed():
    tokens = [(0, 3, "A", 1.0), (3, 8, "A", 1.0), (8, 9, "O", 1.0), (9, 11, "A", 1.0)]
    found = decoded(" ab  cde.\n ", tokens, ["O", "A"])
    assert found == [Span("A", "ab  cde", 1, 8, 1.0)]


def test_a_span_comes_out_with_the_first_token_behind_it():
    decoder = SpanDecoder(["O", "B-A", "I-A"])
    decoder.feed("ab cd ef gh")
    assert decoder.open_from is None
    assert decoder.add(0, 2, 1, 1.0) == []
    assert decoder.add(3, 5, 2, 1.0) == []
    assert decoder.open_from == 0
    assert decoder.add(6, 8, 1, 1.0) == [Span("A", "ab cd", 0, 5, 1.0)]
    assert decoder.end() == [Span("A", "ef", 6, 8, 1.0)]
    assert decoder.end() == []


def test_a_label_that_never_ends_is_cut(monkeypatch):
    monkeypatch.setattr(module, "_LONGEST", 100)
    decoder, found = SpanDecoder(["A"]), []
    for number in range(2000):
        decoder.feed("ab ")
        found += decoder.add(3 * number, 3 * number + 2, 0, 1.0)
        assert len(decoder._text) <= 400
    found += decoder.end()
    assert " ".join(span.text for span in found) == " ".join(["ab"] * 2000)
    assert max(len(span.text) for span in found) <= 101


def test_a_word_that_never_ends_is_cut(monkeypatch):
    monkeypatch.setattr(module, "_LONGEST", 100)
    decoder, found = SpanDecoder(["A"]), []
    for number in range(2000):
        decoder.feed("ab")
        found += decoder.add(2 * number, 2 * number + 2, 0, 1.0)
        assert len(decoder._text) <= 400
    assert "".join(span.text for span in found + decoder.end()) == "ab" * 2000
