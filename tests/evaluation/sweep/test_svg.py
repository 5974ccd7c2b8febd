"""The picture is valid XML, shows every point, and stays inside its frame."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from attendre_core.evaluation.intervals import Interval
from attendre_core.evaluation.sweep.svg import Line, Panel, chart

SVG = "{http://www.w3.org/2000/svg}"


def drawn() -> ElementTree.Element:
    points = [(16, Interval(0.0, 0.0, 0.1)), (64, Interval(0.5, 0.4, 0.6))]
    more = [*points, (256, Interval(1.0, 0.9, 1.0))]
    panels = [
        Panel("first <&>", "M", [Line("MT", points), Line("LFA-0 & co", more)]),
        Panel("second", "M", [Line("MT", points[:1])]),
    ]
    return ElementTree.fromstring(chart('a "title" & more', panels))


def test_every_point_is_there_with_its_number() -> None:
    titles = [circle[0].text for circle in drawn().iter(f"{SVG}circle")]
    assert titles == [
        "MT: 0 % (0 to 10)",
        "MT: 50 % (40 to 60)",
        "LFA-0 & co: 0 % (0 to 10)",
        "LFA-0 & co: 50 % (40 to 60)",
        "LFA-0 & co: 100 % (90 to 100)",
        "MT: 0 % (0 to 10)",
    ]


def test_points_are_inside_and_in_order() -> None:
    root = drawn()
    wide, high = (float(root.attrib[name]) for name in ("width", "height"))
    for circle in root.iter(f"{SVG}circle"):
        assert 0 < float(circle.attrib["cx"]) < wide
        assert 0 < float(circle.attrib["cy"]) < high
    longest = max((p.attrib["points"] for p in root.iter(f"{SVG}polyline")), key=len)
    places = [tuple(map(float, point.split(","))) for point in longest.split()]
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert [y for _, y in places] == sorted((y for _, y in places), reverse=True)


def test_one_legend_for_all_panels_and_a_colour_a_name() -> None:
    root = drawn()
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert words.count("MT") == 1
    assert words.count("first <&>") == 1
    fills = {circle[0].text.partition(":")[0]: set() for circle in root.iter(f"{SVG}circle")}
    for circle in root.iter(f"{SVG}circle"):
        fills[circle[0].text.partition(":")[0]].add(circle.attrib["fill"])
    assert sorted(len(colours) for colours in fills.values()) == [1, 1]
    assert fills["MT"] != fills["LFA-0 & co"]
